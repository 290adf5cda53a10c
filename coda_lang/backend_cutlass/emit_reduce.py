"""Reduces as plain CUDA: loops over named extents, in a fixed order, in f32.

A group of threads computes one output element. The outermost reductions are shared by the group: each thread takes
every G-th term, then the group folds its partial results in shared memory. Reductions inside reductions are loops
of one thread. Where the reduced extent is contiguous, the threads of a group are neighbours (and read neighbours);
else the outputs are. Outputs of different extents are computed one after the other by the same blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_lang.backend_cutlass import cuda_ops
from coda_lang.backend_cutlass.abi import Emitted, Extent, Pointer, Scalar, Stride, layout, output_key
from coda_lang.backend_cutlass.cuda_ops import STORAGE, WIDE
from coda_lang.backend_cutlass.functor import Text, note
from coda_lang.backend_cutlass.naming import identifier, joined
from coda_lang.backend_cutlass.parameter_fields import Fields, block_text, extent_field, scalar_ctype
from coda_lang.ir.program import Kernel, Output, Param, Store, Value, dtype_of
from coda_lang.ir.types import Dim, DType

THREADS = 256

_COMBINE = {
    "reduce_sum": ("0.0f", "coda::Sum"),
    "reduce_max": ("-coda::infinity()", "coda::Max"),
    "reduce_min": ("coda::infinity()", "coda::Min"),
}


def emit_reduce(kernel: Kernel, dtypes: Mapping[str, DType]) -> Emitted:
    return _ReduceEmitter(kernel, dtypes).emit()


@dataclass
class _Scope:
    """A nest of loops: which extents have an index, the values that are known, and the text so far."""

    indices: dict[Dim, str]
    parent: _Scope | None
    indent: str
    known: dict[int, str] = field(default_factory=dict)
    loops: tuple[Dim, ...] = ()  # outermost first
    text: Text = field(kw_only=True)


class _ReduceEmitter:
    def __init__(self, kernel: Kernel, dtypes: Mapping[str, DType]) -> None:
        self.kernel, self.dtypes = kernel, dtypes
        self.block = Fields()
        self.counter = 0
        self.group = 1
        self.nests: list[tuple[tuple[Dim, ...], int]] = []
        self.params = frozenset(p.name for p in kernel.params)

    def emit(self) -> Emitted:
        kernel = self.kernel
        phases: dict[tuple[Dim, ...], list[Store]] = {}
        for store in kernel.stores:
            phases.setdefault(kernel.target(store.target).dims, []).append(store)
        body = Text(kernel.span.source)
        per_block = 1
        largest = max(phases, key=len)
        for dims, stores in phases.items():
            outputs = self._phase(body, dims, stores)
            if dims == largest:
                per_block = outputs
        fields, size = layout(self.block.listed())
        entry = f"coda_{identifier(kernel.name)}"
        text = Text(kernel.span.source)
        text.add(f"// reduce {kernel.name}")
        text.add('#include "coda/reduce.hpp"')
        text.add("")
        block_text(text, fields, size)
        text.add(
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {entry}(const __grid_constant__ Block block) {{'
        )
        text.add(f"  __shared__ float shared[{THREADS}];")
        text.add("  const int thread = threadIdx.x;")
        text.add("  coda::after_earlier_grids();")
        text.extend(body, "  ")
        text.add("}")
        blocks = tuple((d, per_block if i == len(largest) - 1 else 1) for i, d in enumerate(largest))
        return Emitted(
            source="\n".join(text.lines) + "\n",
            entry=entry,
            fields=fields,
            params_bytes=size,
            threads=THREADS,
            shared_bytes=0,
            blocks=blocks,
            persistent=False,
            cluster=(1, 1),
            tile=None,
            lines={i + 1: place for i, place in enumerate(text.places) if place is not None},
            nests=tuple(self.nests),
            early=True,
        )

    # -- phases ------------------------------------------------------------------------------------------------------

    def _phase(self, body: Text, dims: tuple[Dim, ...], stores: list[Store]) -> int:
        """All outputs of the same extents; returns how many of their elements a block computes at once."""
        reductions = [v for v in self._needed(stores) if v.op in _COMBINE and set(v.type.dims) <= set(dims)]
        along = self._contiguous(reductions)
        if not reductions:
            group, outputs = 1, THREADS
            body.add(f"{{  // one thread for each of [{', '.join(map(str, dims))}]")
            place = ("thread", "0")
        elif not dims:
            group, outputs = THREADS, 1
            body.add("{  // one block for the one output")
            place = ("0", "thread")
        elif along:
            group, outputs = 32, THREADS // 32
            body.add(f"{{  // one warp for each of [{', '.join(map(str, dims))}]")
            place = ("thread / 32", "thread % 32")
        else:
            group, outputs = THREADS // 32, 32
            body.add(f"{{  // {group} threads for each of [{', '.join(map(str, dims))}], neighbours along {dims[-1]}")
            place = ("thread % 32", "thread / 32")
        self.group = group
        total = " * ".join(f"int64_t({self._extent(d)})" for d in dims) or "int64_t(1)"
        body.add(f"  const int64_t total = {total};")
        body.add(f"  const int part = {place[1]};")
        body.add(
            f"  for (int64_t first = blockIdx.x * int64_t({outputs}); first < total; "
            f"first += gridDim.x * int64_t({outputs})) {{"
        )
        body.add(f"    const int64_t at = first + {place[0]};")
        body.add("    const bool live = at < total;")
        scope = _Scope({}, None, "    ", text=Text(self.kernel.span.source))
        rest = "(live ? at : 0)"
        for i in range(len(dims) - 1, -1, -1):
            name = f"i{i}"
            if i:
                body.add(f"    const int {name} = int({rest} % {self._extent(dims[i])});")
                body.add(f"    const int64_t rest{i} = {rest} / {self._extent(dims[i])};")
                rest = f"rest{i}"
            else:
                body.add(f"    const int {name} = int({rest});")
            scope.indices[dims[i]] = name
        for store in stores:
            self._store(scope, store)
        body.extend(scope.text)
        body.add("  }")
        body.add("}")
        return outputs

    def _needed(self, stores: list[Store]) -> list[Value]:
        seen: set[int] = set()
        pending = [s.value for s in stores]
        while pending:
            i = pending.pop()
            if i not in seen:
                seen.add(i)
                pending += self.kernel.values[i].args
        return [self.kernel.values[i] for i in sorted(seen)]

    def _contiguous(self, reductions: list[Value]) -> bool:
        """Whether the reduced extents are the last of the inputs that have them."""
        reduced = {v.attr for v in reductions}
        loads = [v for v in self.kernel.values if v.op == "load" and reduced & set(v.type.dims)]
        return all(v.type.dims[-1] in reduced for v in loads)

    def _store(self, scope: _Scope, store: Store) -> None:
        target = self.kernel.target(store.target)
        dtype = self._dtype(target)
        key = store.target if store.accumulate else output_key(self.params, store.target)
        value = self._value(scope, store.value)
        t = STORAGE[dtype.name]
        address = self._address(scope, key, dtype, target.dims, const=False)
        text = scope.text
        text.add(f"{scope.indent}if (live && part == 0) {{{note(store.span)}", store.span)
        text.add(f"{scope.indent}  {t}* to = {address};", store.span)
        new = f"coda::Format<{t}>::widen(*to) + {value}" if store.accumulate else value
        text.add(f"{scope.indent}  *to = coda::Format<{t}>::narrow({new});", store.span)
        text.add(f"{scope.indent}}}")

    # -- values ------------------------------------------------------------------------------------------------------

    def _value(self, scope: _Scope, index: int) -> str:
        """The name of a value where `scope` has its extents; it is computed in the outermost scope that does."""
        value = self.kernel.values[index]
        if value.op == "const":
            assert isinstance(value.attr, (int, float))
            return cuda_ops.literal(value.attr, value.type.dtype)
        dims = self._varies(index)
        # Only while each extent keeps its index: a loop over an extent that the output has too hides the output's.
        home = scope
        while home.parent is not None and all(home.parent.indices.get(d) == home.indices[d] for d in dims):
            home = home.parent
        if index in home.known:
            return home.known[index]
        text = self._expression(home, index, value)
        name = f"v{index}_{self.counter}"
        self.counter += 1
        wide = WIDE[value.type.dtype.kind]
        home.text.add(f"{home.indent}const {wide} {name} = {text};{note(value.span)}", value.span)
        home.known[index] = name
        return name

    def _varies(self, index: int) -> set[Dim]:
        """The extents a value varies along; an absent input varies along none."""
        value = self.kernel.values[index]
        if value.op in ("const", "axis"):
            return set()
        if value.op == "load":
            return set(value.type.dims)
        found: set[Dim] = set()
        for a in value.args:
            found |= self._varies(a)
        return found - {value.attr} if value.op in _COMBINE else found

    def _expression(self, scope: _Scope, index: int, value: Value) -> str:
        if value.op == "axis":
            assert isinstance(value.attr, Dim)
            return f"{WIDE[value.type.dtype.kind]}({self._extent(value.attr)})"
        if value.op == "load":
            param = self.kernel.param(str(value.attr))
            dtype = self._dtype(param)
            if param.host:
                return self.block.add(joined("arg", param.name), scalar_ctype(dtype), Scalar(param.name, dtype))
            address = self._address(scope, param.name, dtype, param.dims, const=True)
            return f"coda::Format<{STORAGE[dtype.name]}>::widen(*({address}))"
        if value.op in _COMBINE:
            return self._reduction(scope, value)
        return cuda_ops.expression(value, [self._value(scope, a) for a in value.args])

    def _reduction(self, scope: _Scope, value: Value) -> str:
        assert isinstance(value.attr, Dim)
        identity, combine = _COMBINE[value.op]
        shared = scope.parent is None
        n = self.counter
        self.counter += 1
        index, total = f"r{n}", f"total{n}"
        loops = (*scope.loops, value.attr)
        if len(loops) > 1:
            self.nests.append((loops, self.group))
        indices, indent = {**scope.indices, value.attr: index}, scope.indent + "  "
        inner = _Scope(indices, scope, indent, loops=loops, text=Text(self.kernel.span.source))
        term = self._value(inner, value.args[0])
        start, step = ("part", str(self.group)) if shared else ("0", "1")
        extent = self._extent(value.attr)
        text = scope.text
        text.add(f"{scope.indent}float {total} = {identity};", value.span)
        text.add(
            f"{scope.indent}for (int {index} = {start}; {index} < {extent}; {index} += {step}) {{{note(value.span)}",
            value.span,
        )
        text.extend(inner.text)
        text.add(f"{scope.indent}  {total} = {combine}::of({total}, {term});", value.span)
        text.add(f"{scope.indent}}}")
        if not shared or self.group == 1:
            return total
        apart = "1" if self.group != THREADS // 32 or self.group == 32 else "32"
        return f"coda::fold<{combine}, {self.group}, {apart}>({total}, part, thread, shared)"

    # -- the block ---------------------------------------------------------------------------------------------------

    def _dtype(self, target: Param | Output) -> DType:
        return dtype_of(target, self.dtypes)

    def _extent(self, dim: Dim) -> str:
        return self.block.add(extent_field(dim), "int32_t", Extent(dim))

    def _address(self, scope: _Scope, key: str, dtype: DType, dims: tuple[Dim, ...], const: bool) -> str:
        name = self.block.add(joined("arg", key), "void*", Pointer(key))
        text = f"static_cast<{STORAGE[dtype.name]}{' const' if const else ''}*>({name})"
        for i, dim in enumerate(dims):
            stride = self.block.add(joined(f"stride{i}", key), "int64_t", Stride(key, i))
            text += f" + {scope.indices[dim]} * {stride}"
        return text
