"""From a specialised kernel to a CUDA translation unit: CUTLASS's kernel layer over an epilogue visitor tree.

The tree is always of one shape. A compute node, generated, holds all maps; its children are the loads and the
accumulator (`Sm90TreeVisitor`). Its results go to one node for each store or reduction, side by side
(`Sm90SplitTreeVisitor`). The nodes are templates of ``csrc/coda``; what is generated beside the compute node are their
arguments and the parameter block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coda_lang.backend_cutlass.abi import (
    Emitted,
    Extent,
    Pointer,
    Scalar,
    Stride,
    TensorMap,
    layout,
    output_key,
)
from coda_lang.backend_cutlass.config import (
    BUDGET,
    MOST_ACCUMULATORS,
    SUBTILES,
    WIDTHS,
    Config,
    Footprint,
    cost,
    epilogue_bytes,
    rejection,
    shared_bytes,
)
from coda_lang.backend_cutlass.cuda_ops import STORAGE
from coda_lang.backend_cutlass.default import for_kernel
from coda_lang.backend_cutlass.emit_reduce import emit_reduce
from coda_lang.backend_cutlass.functor import Functor, Member, Table, Text, count, note
from coda_lang.backend_cutlass.naming import identifier, joined
from coda_lang.backend_cutlass.parameter_fields import Fields, block_text, extent_field, scalar_ctype
from coda_lang.backend_cutlass.shapes import Form, form_of, forms, grid_of, has_heads_columns
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.ops import WELFORD_PARTS
from coda_lang.ir.program import Kernel, Output, Param, Store, Value, dtype_of
from coda_lang.ir.types import BF16, F16, F32, Dim, DType, Type
from coda_lang.source import NOWHERE, Span

TAP = "the accumulator"  # the tensor that it is stored to, if asked for; no name of a program has a space
ACCUMULATOR = "accumulator"
MAP_TILE = (64, 128)
MAP = Config(*MAP_TILE, 1, 1, "pingpong", 2, epilogue_n=32, rolled=1)  # few registers, so that many blocks wait at once

_STATES = {
    "tile_sum": "coda::SumState",
    "tile_max": "coda::MaxState",
    "tile_absmax": "coda::AbsMaxState",
    "tile_logsumexp": "coda::LogSumExpState",
    "tile_welford": "coda::WelfordState",
}
_STATE_BYTES = {"tile_logsumexp": 8, "tile_welford": 12}


@dataclass(frozen=True)
class Node:
    """One node of the tree: its type, the initialiser of its Params, and what it comes from."""

    name: str
    type: str
    params: str
    span: Span
    fragment: str = ""  # the type of what a load hands to the compute node


def emit(
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    config: Config | None = None,
    *,
    direct: frozenset[str] = frozenset(),
    cut: bool = False,
    tap: bool = False,
) -> Emitted:
    """The CUDA of a kernel, map or reduce that `ir.passes.specialise` returned.

    `dtypes` binds its dtype parameters. `direct` names the tensors (outputs as `abi.output_key` names them) that TMA
    cannot move: an address or a row stride that is no multiple of 16 bytes, or elements that are not contiguous.
    It also names such vectors of floats along the columns, which are read in runs otherwise. `cut` says that heads end
    within the parts in which the epilogue walks a tile: a table's columns are then followed from head to head.
    `tap` adds a store of the f32 accumulator to a tensor named `TAP`.

    Raises:
        ArgumentError: nothing is to be written.
        BackendError: the backend cannot do this: f8 operands, or a configuration that does not fit.
    """
    if not kernel.stores and not (tap and kernel.product is not None):
        raise ArgumentError(f"{kernel.name}: nothing is asked for: name some of its `outputs`")
    if kernel.kind == "reduce":
        return emit_reduce(kernel, dtypes)
    return _Emitter(kernel, dtypes, direct, tap, cut).emit(config)


def footprint(
    kernel: Kernel, dtypes: Mapping[str, DType], direct: frozenset[str] = frozenset(), tap: bool = False
) -> Footprint:
    """What the kernel needs of shared memory and of its tiles' width, whatever the configuration."""
    return _Emitter(kernel, dtypes, direct, tap).need


def blocks_of_map(kernel: Kernel) -> int:
    """How many blocks of columns lie side by side in a thread of a map; sums over heads must not part a block."""
    return 1 if any(v.op == "segment_sum" for v in kernel.values) else MAP.epilogue_n // 8


def head_step(kernel: Kernel) -> int:
    """Heads a multiple of so many columns wide are not cut: what a thread reads of them in a subtile lies in one."""
    if kernel.product is not None:
        return max(SUBTILES)
    run = blocks_of_map(kernel)
    return MAP.epilogue_n if run == 1 else 2 * run


class _Emitter:
    config: Config  # of a map too

    def __init__(
        self, kernel: Kernel, dtypes: Mapping[str, DType], direct: frozenset[str], tap: bool, cut: bool = False
    ) -> None:
        if tap:
            kernel = _with_accumulator(kernel)
        self.kernel, self.dtypes, self.direct, self.tap, self.cut = kernel, dtypes, direct, tap, cut
        self.spilled: set[str] = set()  # tensors that would go by TMA, were there room for so many
        self.grid = grid_of(kernel)
        self.forms = forms(kernel, self.grid)
        self.block = Fields()
        self.members: dict[tuple[object, ...], Member] = {}
        self.need = self._footprint()
        while cost(self.need) > BUDGET and (wide := self._widest()) is not None:
            self.spilled.add(wide)
            self.need = self._footprint()
        if kernel.product is not None:
            self.element = self._dtype(kernel.param(kernel.product.a))
            if self.element not in (BF16, F16):
                text = f"{kernel.name}: the product of {self.element} operands does not run on the GPU yet"
                raise BackendError(text, "pass bf16 or f16 operands, or NumPy arrays for the interpreter")

    def _chosen(self, config: Config | None) -> Config:
        """The schedule that is asked for, or the kernel's own."""
        kernel = self.kernel
        if kernel.product is None:
            return MAP
        chosen = config if config is not None else for_kernel(kernel, self.dtypes, self.need)
        reason = rejection(chosen, self.need)
        if reason is not None:
            raise BackendError(f"{kernel.name}: the configuration {chosen} does not fit: {reason}")
        return chosen

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _dtype(self, target: Param | Output) -> DType:
        return dtype_of(target, self.dtypes)

    def _uses_tma(self, key: str, dtype: DType, form: Form) -> bool:
        """Tiles of floats that are aligned and lie along the whole tile; a map's threads move 16 bytes at a time."""
        apart = self.kernel.product is None or key in self.direct or key in self.spilled
        return not apart and form.kind == "tile" and form.columns == "kWhole" and dtype.kind == "float"

    def _aligned(self, key: str, dtype: DType, form: Form) -> str:
        aligned = key not in self.direct and dtype.kind == "float" and form.columns == "kWhole"
        return "true" if aligned else "false"

    def _written(self) -> list[tuple[Store, Output | Param, str]]:
        names = frozenset(p.name for p in self.kernel.params)
        found = []
        for store in self.kernel.stores:
            target = self.kernel.target(store.target)
            key = store.target if store.accumulate else output_key(names, store.target)
            found.append((store, target, key))
        return found

    def _widest(self) -> str | None:
        """The tensor to move without shared memory next: what takes most of it, the first of several.

        Stores go before loads, which the producer warp brings early, unless the loads alone are too many.
        """
        stored: list[tuple[float, str]] = []
        loaded: list[tuple[float, str]] = []
        for _, param in self._loads():
            form, dtype = form_of(self.grid, param.dims), self._dtype(param)
            if self._uses_tma(param.name, dtype, form):
                loaded.append((dtype.bits * form.width, param.name))
        for store, target, key in self._written():
            form, dtype = form_of(self.grid, target.dims), self._dtype(target)
            if self.kernel.values[store.value].op not in _STATES and self._uses_tma(key, dtype, form):
                (loaded if store.accumulate else stored).append((dtype.bits * form.width, key))
        first = loaded if cost(replace(self.need, store_bytes=0)) > BUDGET else stored
        candidates = first or loaded or stored
        return max(candidates, key=lambda s: s[0])[1] if candidates else None

    def _footprint(self) -> Footprint:
        loads = stores = 0.0
        reduces: list[float] = []
        for _, param in self._loads():
            form, dtype = form_of(self.grid, param.dims), self._dtype(param)
            if self._uses_tma(param.name, dtype, form):
                loads += form.width / 2 * dtype.bits / 8
        for store, target, key in self._written():
            value, dtype = self.kernel.values[store.value], self._dtype(target)
            if value.op in _STATES:
                if target.dims[0].tiled:
                    reduces.append(self.forms[value.args[0]].width / 2 * _STATE_BYTES.get(value.op, 4))
                continue
            form = form_of(self.grid, target.dims)
            if store.accumulate and self._uses_tma(key, dtype, form):
                loads += form.width / 2 * dtype.bits / 8
            if self._uses_tma(key, dtype, form):
                stores += form.width / 2 * dtype.bits / 8
        if self.tap:
            stores += 4
        product = self.kernel.product
        columns = min(WIDTHS) if product is None or product.b_transposed else 64
        return Footprint(loads, stores, tuple(reduces), columns)

    def _loads(self) -> list[tuple[int, Param]]:
        found = []
        for i, value in enumerate(self.kernel.values):
            if value.op == "load":
                param = self.kernel.param(str(value.attr))
                if not param.host:
                    found.append((i, param))
        return found

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _pointer(self, key: str, dtype: DType, const: bool) -> str:
        name = self.block.add(joined("arg", key), "void*", Pointer(key))
        return f"static_cast<{STORAGE[dtype.name]}{' const' if const else ''}*>({name})"

    def _stride(self, key: str, dimension: int) -> str:
        return self.block.add(joined(f"stride{dimension}", key), "int64_t", Stride(key, dimension))

    def _place(self, key: str, dtype: DType, form: Form, const: bool) -> str:
        """Address, strides and head width of a tile that is moved directly."""
        strides = f"{self._stride(key, 0)}, {self._stride(key, 1)}"
        return f"{{{self._pointer(key, dtype, const)}, {strides}, {self._period(form)}}}"

    def _period(self, form: Form) -> str:
        if form.columns == "kWhole":
            return "0"
        return f"coda::width_of<{form.width}>({self._period_field()})"

    def _period_field(self) -> str:
        assert self.grid.split is not None
        return self.block.add("period", "int32_t", Extent(self.grid.split.inner))

    def _map(self, key: str, dtype: DType, form: Form, rows: int) -> str:
        columns = self._sub * form.width // 2
        row = columns * dtype.bits // 8
        box = min(row, 128)
        swizzle = box if box >= 32 else 0
        return "&" + self.block.add(
            joined(f"map{rows}", key), "TensorMap", TensorMap(key, (box * 8 // dtype.bits, rows), swizzle)
        )

    @property
    def _sub(self) -> int:
        return self.config.epilogue_n

    @property
    def _run(self) -> int:
        """How many blocks of columns lie side by side in a thread: one, or all of a subtile.

        All beside a product whose b can be loaded in that order, if tables are read: a thread then reads 16 bytes of a
        row where it would read 4, and each read costs the cycles of eight rows whatever its width.
        """
        kernel, every = self.kernel, self._sub // 8
        if kernel.product is None:
            return blocks_of_map(kernel)
        tables = [str(v.attr) for v in kernel.values if v.op == "gather"]
        share = self.config.tile_n // self.config.cluster_m
        spread = kernel.product.b_transposed and any(map(self._in_one_head, tables)) and share % self._sub == 0
        return every if spread and all(v.op != "segment_sum" for v in kernel.values) else 1

    def _in_one_head(self, table: str) -> bool:
        """Whether what a thread reads of a table in a subtile lies in one head, at aligned addresses."""
        heads = has_heads_columns(self.grid, self.kernel.param(table).dims)
        return heads and table not in self.direct and not self.cut

    def _load_node(self, key: str, param: Param, span: Span) -> Node:
        name = joined("Load", key)
        dtype, form = self._dtype(param), form_of(self.grid, param.dims)
        t, w, columns = STORAGE[dtype.name], form.width, f"coda::Columns::{form.columns}"
        fragment = f"coda::Values<coda::Wide<{t}>, {count(form)}>"
        match form.kind:
            case "scalar":
                return Node(name, f"coda::Scalar<{t}>", f"{{{self._pointer(key, dtype, True)}}}", span, fragment)
            case "column":
                params = f"{{{self._pointer(key, dtype, True)}, {self._stride(key, 0)}}}"
                return Node(name, f"coda::Column<{t}>", params, span, fragment)
            case "row":
                params = f"{{{self._pointer(key, dtype, True)}, {self._stride(key, 0)}, {self._period(form)}}}"
                kind = f"coda::Row<Shape, {t}, {w}, {columns}, {self._aligned(key, dtype, form)}>"
                return Node(name, kind, params, span, fragment)
        if self._uses_tma(key, dtype, form):
            return Node(
                name, f"coda::TileLoad<Shape, {t}, {w}>", f"{{{self._map(key, dtype, form, 64)}}}", span, fragment
            )
        params = self._place(key, dtype, form, True)
        kind = f"coda::DirectTile<Shape, {t}, {w}, {columns}, {self._aligned(key, dtype, form)}>"
        return Node(name, kind, params, span, fragment)

    def _member(self, value: int, form: Form, added: int | None = None) -> str:
        """The compute node's result for a node behind it."""
        form = Form(form.rows, form.width)
        key = (value, form, added)
        if key not in self.members:
            suffix = "" if all(m.value != value for m in self.members.values()) else f"_{len(self.members)}"
            self.members[key] = Member(f"out{value}{suffix}", value, form, added)
        return f"&Compute::Outputs::{self.members[key].name}"

    def _store_node(self, store: Store, target: Output | Param, key: str, old: int | None) -> Node:
        value, dtype, form = self.kernel.values[store.value], self._dtype(target), form_of(self.grid, target.dims)
        t, w, columns = STORAGE[dtype.name], form.width, f"coda::Columns::{form.columns}"
        name = joined("Store", key)
        if value.op == "pick":
            return self._pick_node(name, store, key, dtype)
        if value.op == "segment_sum":
            x = self.forms[value.args[0]]
            width = x.width or 2
            member = self._member(value.args[0], Form(True, width))
            period = f"coda::width_of<{width}>({self._period_field()})"
            params = f"{{{self._pointer(key, dtype, False)}, {self._stride(key, 0)}, {self._stride(key, 1)}, {period}}}"
            return Node(
                name, f"coda::SegmentSum<Shape, {t}, {width}, {_bool(store.accumulate)}, {member}>", params, store.span
            )
        member = self._member(store.value, form, old)
        match form.kind:
            case "column":
                params = f"{{{self._pointer(key, dtype, False)}, {self._stride(key, 0)}}}"
                return Node(name, f"coda::ColumnStore<{t}, {member}>", params, store.span)
            case "row":
                params = f"{{{self._pointer(key, dtype, False)}, {self._stride(key, 0)}, {self._period(form)}}}"
                return Node(name, f"coda::RowStore<Shape, {t}, {w}, {columns}, {member}>", params, store.span)
        if self._uses_tma(key, dtype, form):
            params = f"{{{self._map(key, dtype, form, 16)}}}"
            return Node(name, f"coda::TileStore<Shape, {t}, {w}, {member}>", params, store.span)
        params = self._place(key, dtype, form, False)
        kind = f"coda::DirectStore<Shape, {t}, {w}, {columns}, {self._aligned(key, dtype, form)}, {member}>"
        return Node(name, kind, params, store.span)

    def _pick_node(self, name: str, store: Store, key: str, dtype: DType) -> Node:
        args = self.kernel.values[store.value].args
        width = self.forms[args[0]].width or 2
        members = [self._member(args[0], Form(True, width))]
        members += [self._member(a, Form(True)) for a in args[1:]]
        if len(args) == 2:
            members.append("nullptr")
        kind = f"coda::Pick<Shape, {STORAGE[dtype.name]}, {width}, {_bool(store.accumulate)}, {', '.join(members)}>"
        return Node(name, kind, f"{{{self._pointer(key, dtype, False)}, {self._stride(key, 0)}}}", store.span)

    def _reduction_nodes(self) -> list[Node]:
        """Partials; the parts of one statistic share a pass."""
        groups: dict[tuple[object, ...], list[tuple[Store, Output | Param, str]]] = {}
        for store, target, key in self._written():
            value = self.kernel.values[store.value]
            if value.op not in _STATES:
                continue
            over = value.attr[0] if isinstance(value.attr, tuple) else value.attr
            part = value.attr[1] if isinstance(value.attr, tuple) else ""
            group: tuple[object, ...] = (value.op, value.args, over, self._dtype(target), store.accumulate)
            taken = [self.kernel.values[s.value].attr for s, _, _ in groups.get(group, [])]
            if not part or any(isinstance(a, tuple) and a[1] == part for a in taken):
                group = (*group, store.target)
            groups.setdefault(group, []).append((store, target, key))
        nodes = []
        for stores in groups.values():
            first, target, _ = stores[0]
            value, dtype = self.kernel.values[first.value], self._dtype(target)
            parts = 3 if value.op == "tile_welford" else 1
            targets = ["{}"] * parts
            for store, _, key in stores:
                attr = self.kernel.values[store.value].attr
                at = WELFORD_PARTS.index(attr[1]) if isinstance(attr, tuple) else 0
                targets[at] = f"{{{self._pointer(key, dtype, False)}, {self._stride(key, 0)}, {self._stride(key, 1)}}}"
            width = self.forms[value.args[0]].width or self._width_of(target)
            member = self._member(value.args[0], Form(True, width))
            kind = "ColumnReduce" if target.dims[0].tiled else "RowReduce"
            t = STORAGE[dtype.name]
            text = (
                f"coda::{kind}<Shape, {_STATES[value.op]}, {t}, {width}, {parts}, {_bool(first.accumulate)}, {member}>"
            )
            params = "{{" + ", ".join(targets) + "}}"
            nodes.append(Node(joined("Store", stores[0][2]), text, params, first.span))
        return nodes

    def _width_of(self, target: Output | Param) -> int:
        """The width of what a reduction over a value that does not vary along the columns reduces."""
        column = next((d for d in target.dims if not d.tiled and d != self.grid.rows), None)
        return 2 if column is None else int(2 * self.grid.width(column))

    # -- the unit ----------------------------------------------------------------------------------------------------

    def emit(self, config: Config | None) -> Emitted:
        self.config = self._chosen(config)
        kernel = self.kernel
        product = kernel.product
        self._operands()
        inputs: dict[int, str] = {}
        loads: list[Node] = []
        for i, param in self._loads():
            inputs[i] = joined("in", param.name)
            loads.append(self._load_node(param.name, param, kernel.values[i].span))
        accumulator = next((i for i, v in enumerate(kernel.values) if v.op == "acc"), None)
        if product is not None and accumulator is not None:
            loads.append(
                Node(
                    "Accumulator",
                    "coda::Accumulator<Shape>",
                    "{}",
                    product.span,
                    "cutlass::Array<float, Shape::kSub / 2>",
                )
            )
            if accumulator is not None:
                inputs[accumulator] = ACCUMULATOR
        stores = []
        functor = self._functor(inputs)
        for store, target, key in self._written():
            if kernel.values[store.value].op in _STATES:
                continue
            old = None
            if store.accumulate and kernel.values[store.value].op not in ("pick", "segment_sum"):
                assert isinstance(target, Param)
                old = -1 - len(functor.olds)
                functor.olds[old] = (joined("in", target.name), form_of(self.grid, target.dims))
                loads.append(self._load_node(target.name, target, store.span))
            stores.append(self._store_node(store, target, key, old))
        stores += self._reduction_nodes()
        if self.tap and accumulator is not None:
            stores.append(self._tap_node(accumulator))
        return self._unit(functor, loads, stores)

    def _operands(self) -> None:
        """The operands' descriptors come first: `run` finds them there."""
        product, config = self.kernel.product, self.config
        if product is None:
            return
        ends = []
        for side, name, tile, shares, major, run in (
            ("operand_a", product.a, config.tile_m, config.cluster_n, product.a_transposed, 1),
            ("operand_b", product.b, config.tile_n, config.cluster_m, not product.b_transposed, self._run),
        ):
            box = (64, 64 // shares) if major else (64, tile // shares)
            self.block.add(side, "TensorMap", TensorMap(name, box, 128, run))
            if not major:
                ends.append((f"{side}_end", TensorMap(name, box, 128, run, end=True)))
        for side, end in ends:  # in the order in which `run` of csrc/coda/gemm.hpp counts them
            self.block.add(side, "TensorMap", end)
        self.block.add("extent_k", "int32_t", Extent(product.contracted))

    def _tap_node(self, accumulator: int) -> Node:
        member = self._member(accumulator, Form(True, 2))
        form = Form(True, 2)
        return Node(
            "Tap", f"coda::TileStore<Shape, float, 2, {member}>", f"{{{self._map(TAP, F32, form, 16)}}}", NOWHERE
        )

    def _functor(self, inputs: dict[int, str]) -> Functor:
        scalars: dict[str, str] = {}
        lengths: dict[Dim, str] = {}
        tables: dict[str, Table] = {}
        for value in self.kernel.values:
            if value.op == "load" and self.kernel.param(str(value.attr)).host:
                param = self.kernel.param(str(value.attr))
                dtype = self._dtype(param)
                scalars[param.name] = self.block.add(
                    joined("arg", param.name), scalar_ctype(dtype), Scalar(param.name, dtype)
                )
            elif value.op == "axis":
                assert isinstance(value.attr, Dim)
                lengths[value.attr] = self.block.add(extent_field(value.attr), "int64_t", Extent(value.attr))
            elif value.op == "gather":
                self._table(str(value.attr), tables)
        return Functor(self.kernel, self.forms, inputs, scalars, lengths, tables, self._run)

    def _table(self, name: str, tables: dict[str, Table]) -> None:
        param = self.kernel.param(name)
        form = Form()
        data = self._pointer(name, self._dtype(param), True)
        rows = self.block.add(joined("rows", name), "int32_t", Extent(param.dims[0]))
        strides = [self._stride(name, i) for i in range(len(param.dims))]
        if len(param.dims) == 2:
            form = form_of(self.grid, param.dims[1:])
            if form.columns != "kWhole":
                self._period_field()
        if name not in self.direct:
            strides[1:] = ["1"] * len(strides[1:])
        dtype, in_one_head = self._dtype(param), self._in_one_head(name)
        blocks = self._read_at_once // (form.width * dtype.bits // 8) if in_one_head else 1
        blocks = max(1, min(self._run, blocks))
        tables[name] = Table(STORAGE[dtype.name], data, rows, tuple(strides), form, in_one_head, blocks)

    @property
    def _read_at_once(self) -> int:
        """Bytes of a row that a thread reads at once: 16, or 8 where accumulators leave no registers for more."""
        full = self.kernel.product is not None and self.config.accumulators == MOST_ACCUMULATORS
        return 8 if full else 16

    def _unit(self, functor: Functor, loads: list[Node], stores: list[Node]) -> Emitted:
        kernel, config = self.kernel, self.config
        assert kernel.rows is not None
        assert kernel.cols is not None
        self.block.add("extent_m", "int32_t", Extent(kernel.rows))
        self.block.add("extent_n", "int32_t", Extent(kernel.cols))
        body = functor.write(list(self.members.values()))
        fields, size = layout(self.block.listed())
        entry = f"{'cutlass_' if kernel.product else ''}coda_{identifier(kernel.name)}"
        text = Text(kernel.span.source)
        self._head(text)
        block_text(text, fields, size)
        self._compute_text(text, body, loads, functor.lasting)
        self._tree_text(text, loads, stores)
        self._kernel_text(text, entry)
        lines = {i + 1: place for i, place in enumerate(text.places) if place is not None}
        tile = (config.tile_m, config.tile_n) if kernel.product else MAP_TILE
        return Emitted(
            source="\n".join(text.lines) + "\n",
            entry=entry,
            fields=fields,
            params_bytes=size,
            threads=config.threads if kernel.product else 128,
            shared_bytes=shared_bytes(config, self.need) if kernel.product else self._map_shared(),
            blocks=((kernel.rows, tile[0]), (kernel.cols, tile[1])),
            persistent=kernel.product is not None,
            cluster=(config.cluster_m, config.cluster_n) if kernel.product else (1, 1),
            tile=tile,
            lines=lines,
            direct=self.direct,
            cut=self.cut,
            segments=self._segments(),
            early=True,
        )

    def _segments(self) -> tuple[tuple[Dim, int, int], ...]:
        """The heads that `segment_sum` must not find cut by a tile."""
        if self.grid.split is None or all(v.op != "segment_sum" for v in self.kernel.values):
            return ()
        return ((self.grid.split.inner, 8, self.config.tile_n),)

    def _map_shared(self) -> int:
        return -(-epilogue_bytes(self.config, self.need) // 1024) * 1024

    def _head(self, text: Text) -> None:
        kernel, c = self.kernel, self.config
        product = kernel.product
        text.add(f"// {kernel.kind} {kernel.name}: {c if product else 'tile ' + 'x'.join(map(str, MAP_TILE))}")
        if product is not None and c.schedule == "pingpong":
            text.add("#define CODA_PINGPONG")
        text.add(f'#include "coda/{"gemm" if product else "map"}.hpp"')
        text.add("")
        text.add("struct Shape {  // what nodes know of the schedule")
        if product is not None:
            text.add(f"  using Element = cutlass::{'bfloat16_t' if self.element == BF16 else 'half_t'};")
            text.add(f"  static constexpr int kTileM = {c.tile_m}, kTileN = {c.tile_n}, kStages = {c.stages};")
            text.add(
                f"  static constexpr int kClusterM = {c.cluster_m}, kClusterN = {c.cluster_n}, kSwizzle = {c.swizzle};"
            )
            text.add(
                f"  static constexpr bool kAlongM = {_bool(c.raster == 'm')}, kSerpentine = {_bool(c.serpentine == 1)};"
            )
            major_a, major_b = product.a_transposed, not product.b_transposed
            text.add(
                f"  static constexpr bool kMajorA = {_bool(major_a)}, kMajorB = {_bool(major_b)};  // MN-major operands"
            )
        else:
            text.add(f"  static constexpr int kTileM = {c.tile_m}, kTileN = {c.tile_n};")
        loads = round(self.need.load_bytes * self._sub * 64 * c.warpgroups)
        text.add(f"  static constexpr int kWarpgroups = {c.warpgroups}, kSub = {self._sub}, kRun = {self._run};")
        store_stages = c.store_stages if self.need.store_bytes else 0
        text.add(
            f"  static constexpr int kLoadStages = {c.load_stages}, kLoadBytes = {loads};\n"
            f"  static constexpr int kStoreStages = {store_stages};"
        )
        maps = sum(ctype == "TensorMap" for ctype, _ in self.block.known.values())
        text.add(f"  static constexpr int kMaps = {maps};")
        text.add(f"  static constexpr bool kRolled = {_bool(c.rolled == 1)};")
        text.add("};")
        text.add("constexpr int kBlocks = coda::kBlocks<Shape>;")
        text.add("")

    def _compute_text(self, text: Text, body: Text, loads: list[Node], lasting: list[str]) -> None:
        text.add("// All maps of the body.", self.kernel.span)
        text.add("struct Compute : coda::Callbacks {")
        text.add("  struct Params { Block const* source; };")
        text.add("  struct Outputs {")
        for m in self.members.values():
            span = self.kernel.values[m.value].span
            text.add(f"    {m.ctype(self.kernel)} {m.name};{note(span)}", span)
        text.add("  };")
        text.add("  Block const& block;")
        text.add("  coda::Tile tile;")
        for declaration in lasting:
            text.add(f"  {declaration}")
        text.add(
            "  CUTLASS_DEVICE Compute(Params const& p, coda::None*, coda::Tile const& t)\n"
            "      : block(*p.source), tile(t) {}"
        )
        names = [ACCUMULATOR if n.name == "Accumulator" else "in" + n.name.removeprefix("Load") for n in loads]
        arguments = "".join(f",\n      {n.fragment} const& {name}" for n, name in zip(loads, names, strict=True))
        text.add("  template <class Fragment>")
        text.add(
            "  CUTLASS_DEVICE cutlass::Array<Outputs, 1> visit(Fragment const&, int, int epi_m, int epi_n"
            + arguments
            + ") {"
        )
        text.extend(body, "    ")
        text.add("  }")
        text.add("};")
        text.add("")

    def _tree_text(self, text: Text, loads: list[Node], stores: list[Node]) -> None:
        for node in (*loads, *stores):
            text.add(f"using {node.name} = {node.type};{note(node.span)}", node.span)
        children = "".join(f", {n.name}" for n in loads)
        text.add(f"using Inputs = cutlass::epilogue::fusion::Sm90TreeVisitor<coda::Leaf<Compute>{children}>;")
        last, *rest = stores
        aux = "".join(f", {n.name}" for n in rest)
        text.add(f"using Tree = cutlass::epilogue::fusion::Sm90SplitTreeVisitor<Inputs, {last.name}{aux}>;")
        text.add("")
        text.add("CUTLASS_DEVICE Tree::Params tree_params(Block const& block) {")
        inputs = ", ".join([*(f"{n.name}::Params{n.params}" for n in loads), "Compute::Params{&block}"])
        outputs = ", ".join(f"{n.name}::Params{n.params}" for n in (*rest, last))
        text.add(f"  return {{Inputs::Params{{{inputs}}}, {outputs}}};")
        text.add("}")
        text.add("")

    def _kernel_text(self, text: Text, entry: str) -> None:
        c, product = self.config, self.kernel.product
        if product is None:
            text.add(
                f'extern "C" __global__ void __launch_bounds__(128) {entry}(const __grid_constant__ Block block) {{'
            )
            text.add("  coda::run_map<Shape, Tree>(block.extent_m, block.extent_n, tree_params(block));")
            text.add("}")
            return
        major = ["MN" if m else "K" for m in (product.a_transposed, not product.b_transposed)]
        kind = "BF16BF16" if self.element == BF16 else "F16F16"
        majors = ", ".join(f"cute::SM90::GMMA::Major::{m}" for m in major)
        operation = f"MMA_64x{c.tile_n}x16_F32{kind}_SS<{majors}>"
        text.add(f"using Kernel = coda::Gemm<Shape, cute::SM90::GMMA::{operation}, Tree>;", product.span)
        text.add(f"static_assert(Kernel::SharedStorageSize <= {shared_bytes(c, self.need)});")
        cluster = f"__cluster_dims__({c.cluster_m}, {c.cluster_n}, 1) " if c.cluster_m * c.cluster_n > 1 else ""
        text.add(f'extern "C" __global__ void {cluster}__launch_bounds__({c.threads}, 1)')
        text.add(f"{entry}(const __grid_constant__ Block block) {{")
        text.add(
            "  coda::run<Kernel>(block.extent_m, block.extent_n, block.extent_k, &block.operand_a,\n"
            "                    {tree_params(block)});"
        )
        text.add("}")


def _with_accumulator(kernel: Kernel) -> Kernel:
    """The kernel with its accumulator among the values, although no output may need it."""
    if kernel.product is None or any(v.op == "acc" for v in kernel.values):
        return kernel
    assert kernel.rows is not None
    assert kernel.cols is not None
    accumulator = Value("acc", (), None, Type(F32, (kernel.rows, kernel.cols)), kernel.product.span)
    return replace(kernel, values=(*kernel.values, accumulator))


def _bool(x: bool) -> str:
    return "true" if x else "false"
