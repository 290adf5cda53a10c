"""How the values of a body lie on a tile: what they vary along, and how wide they are.

A thread holds a value in one of four forms (see ``csrc/coda/fragment.hpp``): a scalar, a column (one for each row), a
row (one for each column), or a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coda_lang.ir.axes import Grid
from coda_lang.ir.program import Kernel, Value
from coda_lang.ir.types import Dim

Columns = Literal["kWhole", "kInner", "kOuter"]


@dataclass(frozen=True)
class Form:
    """`rows`: it varies from row to row. `width`: its columns in each two of the accumulator's; 0 if it does not vary.

    `columns` says where column n of the tile lies in a tensor of this form: at n, at n mod D (every head alike), or at
    n div D (one for each head; such a value is as wide as the accumulator).
    """

    rows: bool = False
    width: int = 0
    columns: Columns = "kWhole"

    @property
    def kind(self) -> Literal["scalar", "column", "row", "tile"]:
        if self.width:
            return "tile" if self.rows else "row"
        return "column" if self.rows else "scalar"


SCALAR_FORM = Form()


def grid_of(kernel: Kernel) -> Grid:
    assert kernel.rows is not None
    assert kernel.cols is not None
    split = next((s for s in kernel.splits if s.axis == kernel.cols.axis), None)
    return Grid(kernel.rows, kernel.cols, split)


def form_of(grid: Grid, dims: tuple[Dim, ...]) -> Form:
    """The form of a tensor with these extents."""
    col = grid.col_of(dims)
    rows = grid.row_of(dims) is not None
    if col is None:
        return Form(rows)
    part = grid.part(col)
    if part == "outer":
        return Form(rows, 2, "kOuter")
    return Form(rows, int(2 * grid.width(col)), "kInner" if part == "inner" else "kWhole")


def has_heads_columns(grid: Grid, dims: tuple[Dim, ...]) -> bool:
    """Whether a table of rows has a column for each column of a head, the same for all heads."""
    return len(dims) == 2 and form_of(grid, dims[1:]).columns == "kInner"


def forms(kernel: Kernel, grid: Grid) -> list[Form]:
    """The form of each value of a kernel or map: what it really varies along, which may be less than its type says."""
    found: list[Form] = []
    for value in kernel.values:
        found.append(_form(value, grid, [found[a] for a in value.args]))
    return found


def _form(value: Value, grid: Grid, args: list[Form]) -> Form:
    typed = form_of(grid, value.type.dims) if not any(d.tiled for d in value.type.dims) else Form()
    match value.op:
        case "const" | "axis":
            return SCALAR_FORM
        case "acc":
            return Form(True, 2)
        case "load" | "gather":
            return typed
        case "row":
            return Form(True)
        case "col":
            return Form(False, 2)
        case "onehot":
            return Form(args[0].rows, 2)
        case "unpairs":
            return Form(any(a.rows for a in args), typed.width, typed.columns)
        case "even" | "odd":
            return Form(args[0].rows, args[0].width // 2, args[0].columns) if args[0].width else args[0]
    rows = any(a.rows for a in args)
    wide = [a for a in args if a.width]
    if not wide:
        return Form(rows)
    maps = {a.columns for a in wide}
    whole: Columns = maps.pop() if len(maps) == 1 else "kWhole"
    # One value a head takes the width of what it meets.
    width = next((a.width for a in wide if a.columns != "kOuter"), 2)
    return Form(rows, width, whole)
