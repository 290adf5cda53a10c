"""The typed IR: everything a checked program is made of, on one screen.

A kernel's body is a list of values in SSA order. A value names a row of the operation table
(`coda_lang.ir.ops`), the earlier values it reads, and one static attribute. Operands of different
extents broadcast by axis name; the result's type says what they broadcast to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coda_lang.ir.types import Dim, DType, Type
from coda_lang.source import NOWHERE, Span

Number = float | int | bool
# const: its number · load, gather: the input's name · axis: the extent · round: an element type ·
# reductions: the extent they run over · tile_welford: that extent and which of its three results
Attr = Number | str | DType | Dim | tuple[Dim, str] | None


@dataclass(frozen=True, slots=True)
class Value:
    op: str
    args: tuple[int, ...]
    attr: Attr
    type: Type
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Bound:
    """One side of a domain: a number, or an extent plus a number (``N - 1``)."""

    offset: Number = 0
    dim: Dim | None = None


@dataclass(frozen=True)
class Domain:
    """What elements may be: ``low ≤ x < high`` (``low_strict``: ``low < x``), or the value of scalar ``other``."""

    low: Bound | None = None
    high: Bound | None = None
    low_strict: bool = False
    high_strict: bool = True
    other: str | None = None


@dataclass(frozen=True)
class DTypeParam:
    name: str
    choices: tuple[DType, ...]


@dataclass(frozen=True)
class Split:
    """``axis = outer * inner``: column n of `axis` is column ``n mod inner`` of head ``n div inner``."""

    axis: str
    outer: Dim
    inner: Dim


@dataclass(frozen=True)
class Param:
    """An input. ``host`` marks a scalar passed by value; ``default`` makes it optional."""

    name: str
    dtype: DType | str  # or the name of a dtype parameter
    dims: tuple[Dim, ...]
    host: bool = False
    default: Number | None = None
    domain: Domain | None = None
    inout: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Output:
    name: str
    dtype: DType | str
    dims: tuple[Dim, ...]
    optional: bool = False
    span: Span = field(default=NOWHERE, compare=False)


def dtype_of(target: Param | Output, dtypes: Mapping[str, DType]) -> DType:
    """The element type of a tensor, given what the kernel's dtype parameters are bound to."""
    return target.dtype if isinstance(target.dtype, DType) else dtypes[target.dtype]


@dataclass(frozen=True)
class Product:
    """``acc[i, j] = Σ_k A[i, k]·B[k, j]`` in f32; A is `a`, or its transpose, and B is `b`, or its transpose."""

    a: str
    b: str
    a_transposed: bool
    b_transposed: bool
    contracted: Dim
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Store:
    """``target <- value`` or ``target +<- value``; the target is an output or an ``inout`` input."""

    target: str
    value: int
    accumulate: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The signature of what can be called: a kernel, map, reduce or block."""

    kind: Literal["kernel", "map", "reduce", "block"]
    name: str
    doc: str
    axes: tuple[str, ...]
    splits: tuple[Split, ...]
    dtypes: tuple[DTypeParam, ...]
    params: tuple[Param, ...]
    outputs: tuple[Output, ...]
    span: Span = field(default=NOWHERE, compare=False)

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)

    def target(self, name: str) -> Output | Param:
        """What a store writes: the output of that name, or the ``inout`` input."""
        targets: tuple[Output | Param, ...] = (*self.outputs, *self.params)
        return next(t for t in targets if t.name == name)


@dataclass(frozen=True, kw_only=True)
class Kernel(Definition):
    """A kernel (one product), a map (none) or a reduce (combines partials)."""

    product: Product | None
    rows: Dim | None  # the tile grid: the accumulator's extents; None in a reduce
    cols: Dim | None
    values: tuple[Value, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Scalar:
    """A number that a block passes by value: const, axis (a length), param (of the block), or neg add sub mul div."""

    op: str
    args: tuple[Scalar, ...] = ()
    attr: Number | Dim | str | None = None


@dataclass(frozen=True)
class Tensor:
    """An array of a block: an input, or the result of a step. `tiles(X)` belongs to the step that ``of`` names."""

    name: str
    dtype: DType | str
    dims: tuple[Dim, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Step:
    """One call of a block: arguments by the callee's names, and the names that its results get."""

    callee: Kernel | Block
    tensors: tuple[tuple[str, str], ...]
    scalars: tuple[tuple[str, Scalar], ...]
    axes: tuple[tuple[str, Dim], ...]
    results: tuple[tuple[str, str], ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, kw_only=True)
class Block(Definition):
    """A composition: steps in order, and for each output the result that it is. ``by`` is an axis, and how much of it
    the block works on at a time."""

    by: tuple[str, int] | None
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    stores: tuple[tuple[str, str], ...]

    def kernels(self) -> list[Kernel]:
        """What it launches, inner blocks too, each once."""
        found: dict[int, Kernel] = {}
        for step in self.steps:
            for kernel in step.callee.kernels() if isinstance(step.callee, Block) else [step.callee]:
                found.setdefault(id(kernel), kernel)
        return list(found.values())
