"""A program's work as a PyTorch function, made from its typed IR: what `torch.compile` gets to compile.

The function is flat source, one line for each value, for one call's extents. Its product is PyTorch's own, rounded to
the operands' type, and the epilogue is evaluated in f32 from that, as code written by hand in PyTorch would. Reductions
over a tile have no counterpart there: the function computes the whole's (the sum, the maximum, the logsumexp, or the
count, mean and M2 of all tiles), which is what the partials are for. Indices are taken to lie in their domains.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any

import torch
from torch import Tensor

from coda_lang.bench import torch_ops
from coda_lang.bench.torch_ops import TORCH
from coda_lang.binding import Binding
from coda_lang.ir.axes import Grid
from coda_lang.ir.program import Kernel, Output, Param, Store, Value
from coda_lang.ir.types import BOOL, F32, Dim, DType

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
_SEES = {n: getattr(torch_ops, n) for n in dir(torch_ops) if not n.startswith("_")}
_SEES |= {"nan": float("nan"), "inf": float("inf")}  # as `repr` writes them
_numbers = count()


@dataclass(frozen=True)
class Reference:
    """`function` takes the inputs in order and returns the outputs in order; `source` is its text."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Callable[..., tuple[Tensor, ...]]
    source: str

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
        """The outputs of a call by name; lengths among the arguments are not needed."""
        return dict(zip(self.outputs, self.function(*self.positional(arguments)), strict=True))

    def positional(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(arguments[n] for n in self.inputs)


def reference(binding: Binding, exact_product: bool = False) -> Reference:
    """The PyTorch function of a call, whose kernel `specialise` made.

    Args:
        exact_product: multiply in f32, as the language does, in place of PyTorch's rounded product.

    Returns:
        A function of the kernel's inputs; partials along an axis are gone from its outputs' shapes.
    """
    lines = list(_Writer(binding, exact_product).lines())
    source = "\n".join(lines) + "\n"
    name = f"<torch reference {next(_numbers)} of {binding.kernel.name}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # for tracebacks, and Dynamo
    space: dict[str, Any] = dict(_SEES)
    exec(compile(source, name, "exec"), space)
    kernel = binding.kernel
    targets = (*[p.name for p in kernel.params if p.inout], *[o.name for o in kernel.outputs])
    return Reference(tuple(p.name for p in kernel.params), targets, space["reference"], source)


class _Writer:
    def __init__(self, binding: Binding, exact_product: bool) -> None:
        self.binding, self.exact = binding, exact_product
        self.kernel: Kernel = binding.kernel
        self.inputs = {p.name: f"x{i}" for i, p in enumerate(self.kernel.params)}
        self.like = self.inputs[next(p.name for p in self.kernel.params if not p.host)]  # whose device is the call's
        split = None
        if self.kernel.cols is not None:
            split = next((s for s in self.kernel.splits if s.axis == self.kernel.cols.axis), None)
        self.grid = None
        if self.kernel.rows is not None and self.kernel.cols is not None:
            self.grid = Grid(self.kernel.rows, self.kernel.cols, split)

    def lines(self) -> Iterator[str]:
        yield f"def reference({', '.join(self.inputs.values())}):"
        for p in self.kernel.params:
            yield f"    # {self.inputs[p.name]}: {p.name} {p.dtype}[{', '.join(map(str, p.dims))}]"
        product = self.kernel.product
        if product is not None:
            a, b = self.inputs[product.a], self.inputs[product.b]
            wide = ".float()" if self.exact else ""
            left = f"{a}.T" if product.a_transposed else a
            right = f"{b}.T" if product.b_transposed else b
            yield f"    product = {left}{wide} @ {right}{wide}"
        for i, value in enumerate(self.kernel.values):
            plain = self._plain(i)
            yield f"    v{i} = {self._value(value) if plain == i else f'v{plain}'}"
        stores = {s.target: s for s in self.kernel.stores}
        targets: list[Output | Param] = [p for p in self.kernel.params if p.inout]
        targets += self.kernel.outputs
        for target in targets:
            yield f"    # {target.name}"
            yield f"    out_{self._order(target)} = {self._stored(stores[target.name], target)}"
        yield f"    return ({', '.join(f'out_{self._order(t)}' for t in targets)},)"

    def _order(self, target: Output | Param) -> int:
        return [*self.kernel.outputs, *self.kernel.params].index(target)

    def _length(self, dim: Dim) -> int:
        return self.binding.length(dim)

    # -- values --

    def _plain(self, index: int) -> int:
        """The value that another one equals but for the sign of zero: x + 0, an input that was not passed, is x."""
        value = self.kernel.values[index]
        if value.op == "add":
            for a, b in (value.args, value.args[::-1]):
                zero = self.kernel.values[b]
                if zero.op == "const" and zero.attr == 0 and self.kernel.values[a].type == value.type:
                    return self._plain(a)
        return index

    def _value(self, value: Value) -> str:
        special = getattr(self, f"op_{value.op}", None)
        if special is not None:
            return str(special(value))
        args = [self._met(a, value.type.dims) for a in value.args]
        if TORCH[value.op].startswith("torch."):
            args = [self._tensor(x, a) for x, a in zip(args, value.args, strict=True)]
        return TORCH[value.op].format(*args)

    def _is_tensor(self, index: int) -> bool:
        """Whether a value is a tensor for certain; numbers come from constants, lengths and scalars of the host."""
        value = self.kernel.values[index]
        if value.op == "load":
            return not self.kernel.param(str(value.attr)).host
        if value.op in ("const", "axis"):
            return False
        return value.op in ("acc", "row", "col", "gather") or any(self._is_tensor(a) for a in value.args)

    def _tensor(self, text: str, index: int) -> str:
        return text if self._is_tensor(index) else f"tensor({text}, {self.like})"

    def _met(self, index: int, wanted: tuple[Dim, ...]) -> str:
        """An argument that broadcasts as the language does: by axis name."""
        dims, text = self.kernel.values[index].type.dims, f"v{index}"
        if self.grid is None:
            return self._aligned(text, index, wanted)
        own, col = self.grid.col_of(dims), self.grid.col_of(wanted)
        if own is None or col is None or own == col:
            return text
        inner = self.grid.part(own) == "inner"
        copies = self._length(col) // max(1, self._length(own))
        return f"spread({text}, {copies}, {inner})"

    def _aligned(self, text: str, index: int, wanted: tuple[Dim, ...]) -> str:
        """A value of a reduce with its axes in the order of `wanted`, of length 1 where it does not vary."""
        dims = self.kernel.values[index].type.dims
        if dims == wanted or not self._is_tensor(index):
            return text
        order = sorted(range(len(dims)), key=lambda i: wanted.index(dims[i]))
        if order != list(range(len(dims))):
            text += f".permute({', '.join(map(str, order))})"
        return f"{text}[{', '.join(':' if d in dims else 'None' for d in wanted)}]" if wanted else text

    def _full(self, index: int) -> str:
        """A value at the full length of each of its extents."""
        dims, text = self.kernel.values[index].type.dims, self._tensor(f"v{index}", index)
        if self.grid is None:
            return f"{text}.expand({', '.join(str(self._length(d)) for d in dims)})" if dims else text
        row, col = self.grid.row_of(dims), self.grid.col_of(dims)
        rows, cols = (1 if d is None else self._length(d) for d in (row, col))
        return f"{text}.expand({rows}, {cols})"

    def op_const(self, value: Value) -> str:
        return repr(value.attr)

    def op_axis(self, value: Value) -> str:
        assert isinstance(value.attr, Dim)
        length = self._length(value.attr)
        return repr(float(length) if value.type.dtype == F32 else length)

    def op_acc(self, value: Value) -> str:
        return "product" if self.exact else "product.float()"

    def op_load(self, value: Value) -> str:
        p = self.kernel.param(str(value.attr))
        text = self.inputs[p.name]
        if p.host:
            return text
        dtype = self.binding.dtype(p)
        text += {"float": ".float()", "int": ".long()", "bool": ""}[dtype.kind]
        if self.grid is None:
            return text
        parts = [self.grid.part(d) for d in p.dims]
        if not parts:
            return f"{text}.reshape(1, 1)"
        if len(parts) == 1:
            return f"{text}[:, None]" if parts == ["row"] else f"{text}[None, :]"
        return text

    def op_row(self, value: Value) -> str:
        return f"torch.arange({self._length(value.type.dims[0])}, device={self.like}.device)[:, None]"

    def op_col(self, value: Value) -> str:
        return f"torch.arange({self._length(value.type.dims[0])}, device={self.like}.device)[None, :]"

    def op_gather(self, value: Value) -> str:
        p = self.kernel.param(str(value.attr))
        rows = f"{self.inputs[p.name]}[v{value.args[0]}[:, 0]]"
        wide = {"float": ".float()", "int": ".long()", "bool": ""}[self.binding.dtype(p).kind]
        return rows + wide if len(p.dims) == 2 else f"{rows}[:, None]{wide}"

    def op_pick(self, value: Value) -> str:
        x, index = self._full(value.args[0]), self._full(value.args[1])
        rows = f"{index}.expand({self._length(self._rows)}, 1)"
        ignore = f", v{value.args[2]}" if len(value.args) == 3 else ""
        return f"pick({x}, {rows}{ignore})"

    def op_onehot(self, value: Value) -> str:
        columns = f"torch.arange({self._length(value.type.dims[1])}, device={self.like}.device)[None, :]"
        return f"({columns} == v{value.args[0]}).float()"

    def op_round(self, value: Value) -> str:
        assert isinstance(value.attr, DType)
        return f"rounded({self._full(value.args[0])}, {DTYPES[value.attr.name]}).float()"

    def op_even(self, value: Value) -> str:
        return f"{self._full(value.args[0])}[:, 0::2]"

    def op_odd(self, value: Value) -> str:
        return f"{self._full(value.args[0])}[:, 1::2]"

    def op_unpairs(self, value: Value) -> str:
        assert self.grid is not None
        half = self.grid.col_of(value.type.dims)
        assert half is not None
        row = self.grid.row_of(value.type.dims)
        rows, cols = 1 if row is None else self._length(row), self._length(half) // 2
        wanted = (*value.type.dims[:-1], half.scaled(Fraction(1, 2)))
        parts = [f"{self._tensor(self._met(a, wanted), a)}.expand({rows}, {cols})" for a in value.args]
        return f"unpairs({', '.join(parts)})"

    # -- reductions: over the whole extent --

    @property
    def _rows(self) -> Dim:
        assert self.kernel.rows is not None
        return self.kernel.rows

    def _along(self, value: Value) -> int:
        over = value.attr[0] if isinstance(value.attr, tuple) else value.attr
        assert isinstance(over, Dim)
        return 0 if over.axis == self._rows.axis else 1

    def op_tile_sum(self, value: Value) -> str:
        return f"{self._full(value.args[0])}.sum({self._along(value)})"

    def op_tile_max(self, value: Value) -> str:
        return f"{self._full(value.args[0])}.amax({self._along(value)})"

    def op_tile_absmax(self, value: Value) -> str:
        return f"{self._full(value.args[0])}.abs().amax({self._along(value)})"

    def op_tile_logsumexp(self, value: Value) -> str:
        return f"torch.logsumexp({self._full(value.args[0])}, {self._along(value)})"

    def op_tile_welford(self, value: Value) -> str:
        assert isinstance(value.attr, tuple)
        return f"welford({self._full(value.args[0])}, {self._along(value)}, {value.attr[1]!r})"

    def op_segment_sum(self, value: Value) -> str:
        heads = self._length(value.type.dims[1])
        return f"{self._full(value.args[0])}.unflatten(1, ({heads}, -1)).sum(-1)"

    def _reduced(self, value: Value, method: str) -> str:
        dims = self.kernel.values[value.args[0]].type.dims
        assert isinstance(value.attr, Dim)
        return f"{self._full(value.args[0])}.{method}({dims.index(value.attr)})"

    def op_reduce_sum(self, value: Value) -> str:
        return self._reduced(value, "sum")

    def op_reduce_max(self, value: Value) -> str:
        return self._reduced(value, "amax")

    def op_reduce_min(self, value: Value) -> str:
        return self._reduced(value, "amin")

    # -- stores --

    def _stored(self, store: Store, target: Output | Param) -> str:
        value, dtype = self.kernel.values[self._plain(store.value)], self.binding.dtype(target)
        type_ = DTYPES[dtype.name]
        operand = self.kernel.product and self.binding.dtype(self.kernel.param(self.kernel.product.a))
        if value.op == "acc" and not store.accumulate and not self.exact and dtype == operand:
            return "product"  # stored as PyTorch's product leaves it
        text = self._in_place(store.value, target)
        if store.accumulate:
            text = f"{self.inputs[target.name]}.float() + {text}"
        if value.type.dtype == BOOL or dtype.kind != "float":
            return f"({text}).to({type_})"
        return f"rounded({text}, {type_})"

    def _in_place(self, index: int, target: Output | Param) -> str:
        """A value in the shape of what it is stored to."""
        value = self.kernel.values[index]
        if value.op.startswith("tile_") or value.op == "segment_sum":
            return f"v{index}"
        shape = self._shape(target)
        if self.grid is None:
            return f"{self._tensor(self._aligned(f'v{index}', index, target.dims), index)}.expand({shape})"
        text = self._tensor(self._met(index, target.dims), index)
        parts = [self.grid.part(d) for d in target.dims]
        if len(parts) == 2:
            return f"{text}.expand({shape})"
        return f"{text}.expand({shape}, 1)[:, 0]" if parts == ["row"] else f"{text}.expand(1, {shape})[0]"

    def _shape(self, target: Output | Param) -> str:
        return ", ".join(str(self._length(d)) for d in target.dims) or "()"
