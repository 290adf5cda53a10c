"""How extents meet: the tile grid of a kernel, and broadcasting by axis name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from coda_lang.ir.program import Kernel, Split
from coda_lang.ir.types import Dim, axis_dim
from coda_lang.source import Span

WIDTHS = (Fraction(1, 2), Fraction(1), Fraction(2))
Part = Literal["row", "full", "inner", "outer"]


@dataclass(frozen=True)
class Grid:
    """The accumulator's extents. Every value of a kernel lies along them: class 2 and 3 of the paper.

    A column extent is ``full`` (½, 1 or 2 times the accumulator's), or head-wise where the column axis is split
    as H * D: ``inner`` repeats in every head, ``outer`` holds one column for each head.
    """

    rows: Dim
    cols: Dim
    split: Split | None = None

    def part(self, dim: Dim) -> Part | None:
        """What a dimension is to this grid; None if it does not lie along it."""
        if dim.tiled:
            return None
        if dim == self.rows:
            return "row"
        if dim.axis is not None and dim.axis == self.cols.axis:
            return "full" if self.width(dim) in WIDTHS else None
        if self.split is not None:
            if dim == self.split.outer:
                return "outer"
            if dim.axis == self.split.inner.axis and dim.coef / self.split.inner.coef in WIDTHS:
                return "inner"
        return None

    def width(self, dim: Dim) -> Fraction:
        """A column extent's width in units of the accumulator's (an outer one counts as 1)."""
        if self.split is not None and dim != self.cols and dim.axis == self.split.inner.axis:
            return dim.coef / self.split.inner.coef
        if dim.axis == self.cols.axis:
            return dim.coef / self.cols.coef
        return Fraction(1)

    def row_of(self, dims: tuple[Dim, ...]) -> Dim | None:
        return next((d for d in dims if self.part(d) == "row"), None)

    def col_of(self, dims: tuple[Dim, ...]) -> Dim | None:
        return next((d for d in dims if self.part(d) != "row"), None)

    def join(self, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
        """The extents that two values broadcast to; None if their columns do not meet."""
        row = self.row_of(left) or self.row_of(right)
        a, b = self.col_of(left), self.col_of(right)
        col = a or b
        if a is not None and b is not None and a != b:
            kinds = {self.part(a), self.part(b)}
            wide = {self.width(d) for d in (a, b) if self.part(d) != "outer"}
            if len(kinds) == 1 or len(wide) != 1:
                return None
            col = self.cols.scaled(wide.pop())
        return tuple(d for d in (row, col) if d is not None)

    def is_tile(self, dims: tuple[Dim, ...]) -> bool:
        return len(dims) == 2 and self.part(dims[0]) == "row" and self.part(dims[1]) == "full"


def head_parts(kernel: Kernel) -> Iterator[tuple[Dim, Span]]:
    """The width of a head wherever one number of each head meets columns of another width than the accumulator's.

    At half width a head is D/2 columns wide, which must be a whole number.
    """
    split = next((s for s in kernel.splits if axis_dim(s.axis) == kernel.cols), None)
    if split is None or kernel.rows is None or kernel.cols is None:
        return
    grid = Grid(kernel.rows, kernel.cols, split)

    def at(dims: tuple[Dim, ...], factor: Fraction = Fraction(1)) -> Dim:
        col = grid.col_of(dims)
        return split.inner.scaled(grid.width(col) * factor if col is not None else factor)

    def by_head(dims: tuple[Dim, ...]) -> bool:
        return any(grid.part(d) == "outer" for d in dims)

    for v in kernel.values:
        args = [kernel.values[a].type.dims for a in v.args]
        if v.op == "segment_sum":
            yield at(args[0]), v.span
        elif any(map(by_head, args)):
            yield at(v.type.dims, Fraction(1, 2) if v.op == "unpairs" else Fraction(1)), v.span
    for store in kernel.stores:
        dims = kernel.target(store.target).dims
        if by_head(kernel.values[store.value].type.dims) and not by_head(dims):
            yield at(dims), store.span


def join_named(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...] | tuple[Dim, Dim]:
    """The extents two values of a reduce broadcast to, in order of appearance."""
    return left + tuple(d for d in right if d not in left)


def conflict(dims: tuple[Dim, ...]) -> tuple[Dim, Dim] | None:
    """Two extents along one axis that are not the same extent, if there are any."""
    for i, a in enumerate(dims):
        for b in dims[i + 1 :]:
            if a.axis == b.axis and a.axis is not None and a.tiled == b.tiled:
                return a, b
    return None
