"""The five primitive classes of the CODA paper (arXiv 2605.19269, §3.1): what they refuse, and why.

Each function enforces one rule and words its error. The axes that values lie along are the tile's own, so "reading
another tile" can only be written as one of the things refused here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from coda_lang.errors import Note
from coda_lang.ir.axes import WIDTHS, Grid
from coda_lang.ir.program import Output, Param, Value
from coda_lang.ir.report import Report
from coda_lang.ir.types import Dim, axis_dim, tiles_dim
from coda_lang.parser import syntax as s
from coda_lang.source import Span

if TYPE_CHECKING:
    from coda_lang.ir.signature import Signature

HALF, DOUBLE = Fraction(1, 2), Fraction(2)


# -- the product ---------------------------------------------------------------------------------------------------


def refuse_product(report: Report, expr: s.Binary, kind: str, first: s.Binary | None, in_function: bool) -> None:
    """A kernel has one product, of two of its inputs."""
    if in_function:
        text, help = "a function has no product", "write the product in the kernel and pass its value"
        report.add("E0303", expr.span, text, help)
    elif kind != "kernel":
        report.add("E0311", expr.span, f"a {kind} has no product", "only a kernel has one")
    elif first is not None and expr is not first:
        note = [Note("the product of this kernel is here", first.span)]
        text = "a second product: a kernel is one GEMM and its epilogue"
        same = "".join(expr.span.text.split()) == "".join(first.span.text.split())
        help = "bind the first one to a name and use that" if same else "put it into a kernel of its own"
        report.add("E0301", expr.span, text, help, note)


def refuse_transpose(report: Report, expr: s.Attribute) -> None:
    text = "a value cannot be transposed: its elements live in other tiles' threads"
    report.add("E0304", expr.span, text, "only the operands of the product take `.T`, as in `a.T @ b`")


def operand(report: Report, side: s.Expr, signature: Signature) -> tuple[Param, bool] | None:
    """One side of the product: an input, or its transpose."""
    transposed = isinstance(side, s.Attribute) and side.name == "T"
    inner = side.operand if isinstance(side, s.Attribute) else side
    param = signature.param(inner.text) if isinstance(inner, s.Name) else None
    if param is None:
        if isinstance(inner, s.Name) and inner.text in signature.poisoned:
            return None
        text = "the product is of two inputs: an operand is read by the mainloop, before any epilogue"
        help = None
        if isinstance(inner, s.Binary):
            help = "parenthesise the product: `alpha * (a @ b.T)`"
        report.add("E0303", side.span, text, help or "pass the operand as an input `a: bf16[M, K]`")
        return None
    if len(param.dims) != 2 or any(d.tiled for d in param.dims):
        shape = f"[{', '.join(map(str, param.dims))}]" if not param.host else "a scalar"
        text = f"an operand of the product has two extents, and `{param.name}` has {shape}"
        report.add("E0303", side.span, text, "declare it like `a: bf16[M, K]`")
        return None
    narrow = {"bf16", "f16", "f8e4m3", "f8e5m2"}
    names = {param.dtype} if not isinstance(param.dtype, str) else set()
    names |= {c for p in signature.dtypes if p.name == param.dtype for c in p.choices}
    wrong = sorted(str(n) for n in names if str(n) not in narrow)
    if wrong:
        text = f"operands of the product are bf16, f16, f8e4m3 or f8e5m2, and `{param.name}` is {' or '.join(wrong)}"
        report.add("E0210", side.span, text, "tensor cores multiply 16- and 8-bit floats and add in f32")
        return None
    if param.inout or param.default is not None:
        text = f"an operand of the product is always read, and `{param.name}` is "
        text += "inout" if param.inout else "optional"
        report.add("E0210", side.span, text, "remove `inout`" if param.inout else "remove the default")
        return None
    return param, transposed


def product_extents(
    report: Report, expr: s.Binary, a: tuple[Param, bool], b: tuple[Param, bool]
) -> tuple[Dim, Dim, Dim] | None:
    """Rows, columns and the contracted extent of a product; None after an error."""
    (left, left_t), (right, right_t) = a, b
    rows, inner_a = reversed(left.dims) if left_t else left.dims
    inner_b, cols = reversed(right.dims) if right_t else right.dims
    ok = inner_a == inner_b
    if not ok:
        shown = [f"`{p.name}{'.T' if t else ''}`" for p, t in (a, b)]
        text = f"the contracted extents differ: {shown[0]} ends in {inner_a}, {shown[1]} begins with {inner_b}"
        report.add("E0211", expr.span, text, _transposed(a, b))
    if left.dtype != right.dtype:
        text = f"the operands differ in element type: `{left.name}` is {left.dtype}, `{right.name}` is {right.dtype}"
        report.add("E0210", expr.span, text, "both operands have one element type")
        ok = False
    if not ok:
        return None
    if rows.axis is None or cols.axis is None:
        constant = rows if rows.axis is None else cols
        text = f"the accumulator's extents are named axes, and {constant} is a number"
        report.add("E0212", expr.span, text, "give the extent a name in `<…>`")
        return None
    if rows.axis == cols.axis:
        text = f"rows and columns of the product are both `{rows.axis}`, so no vector could be matched by name"
        report.add("E0212", expr.span, text, "give one of them another axis name")
        return None
    return rows, cols, inner_a


def _transposed(a: tuple[Param, bool], b: tuple[Param, bool]) -> str:
    """The help for a product whose operands do not meet as they are written."""
    (left, left_t), (right, right_t) = a, b
    for turn in (left_t, not left_t):
        for turn_right in (right_t, not right_t):
            rows, inner = reversed(left.dims) if turn else left.dims
            other, cols = reversed(right.dims) if turn_right else right.dims
            if inner == other and rows != cols:
                form = f"{left.name}{'.T' if turn else ''} @ {right.name}{'.T' if turn_right else ''}"
                return f"write `{form}`: both have {inner}"
    return "both operands share one extent, which the product sums over"


# -- classes 2 and 3: what a tile may read ---------------------------------------------------------------------------


def aligned(report: Report, grid: Grid, param: Param, span: Span, contracted: Dim | None) -> bool:
    """An input read by element lies along the tile: [], [M], [N] or [M, N] and its half and double widths."""
    dims = param.dims
    shape = f"`{param.name}` is [{', '.join(map(str, dims))}]"
    parts = [grid.part(d) for d in dims]
    if any(d.tiled for d in dims):
        text = f"{shape}, and partials of other tiles are combined in a reduce"
        report.add("E0315", span, text, "make it a `reduce`, and pass its result to this kernel")
        return False
    if len(dims) == 2 and parts[0] not in (None, "row") and parts[1] == "row":
        text = f"{shape}, transposed against the tile [{grid.rows}, {grid.cols}]"
        report.add("E0307", span, text, f"pass it as [{grid.rows}, {dims[0]}]")
        return False
    for dim, part in zip(dims, parts, strict=True):
        if part is not None:
            continue
        if contracted is not None and dim.axis == contracted.axis and dim.axis is not None:
            text = (
                f"{shape}, and `{dim.axis}` is contracted by the product: no element of the tile has a place along it"
            )
            report.add("E0312", span, text, f"scale an operand along {dim.axis} before the call")
        elif dim.axis == grid.cols.axis:
            text = f"{shape}, and columns are half, once or twice the accumulator's {grid.cols}"
            report.add("E0213", span, text, _widths(grid))
        else:
            text = f"{shape}, and {dim} is no extent of the tile [{grid.rows}, {grid.cols}]"
            help = f"inputs read by element are [], [{grid.rows}], [{grid.cols}] or [{grid.rows}, {grid.cols}]"
            if len(dims) == 1 and dim.axis is None and dim.coef == 1:
                help = f"one number is `{param.name}: {param.dtype}[]` on the device, `{param.name}: f32` from the host"
            elif part is None and dim is dims[0] and len(dims) <= 2:
                help += f"; rows of a table are read by `{param.name}[index{', ...' if len(dims) > 1 else ''}]`"
            report.add("E0307", span, text, help)
        return False
    if len(dims) > 2 or (len(dims) == 2 and parts[0] != "row") or (len(dims) == 2 and parts[1] == "row"):
        text = f"{shape}, which is not a scalar, a vector or a tile of [{grid.rows}, {grid.cols}]"
        report.add("E0307", span, text, "a tile has one row and one column extent, in this order")
        return False
    return True


def gathered(
    report: Report, grid: Grid | None, param: Param, kinds: set[str], index: Value, expr: s.Index
) -> tuple[Dim, ...] | None:
    """`table[index, ...]` reads whole rows of a table, one for each row of the tile."""
    if grid is None:
        report.add("E0311", expr.span, "a reduce does not read tables", "gather in a kernel or a map")
        return None
    dims = param.dims
    if not dims or len(dims) > 2 or param.host or kinds != {"float"} or dims[0].tiled:
        shape = "a scalar" if param.host or not dims else f"{param.dtype}[{', '.join(map(str, dims))}]"
        text = f"`{param.name}` is {shape}, and a table is a float input [P] or [P, columns]"
        report.add("E0308", expr.table_span, text, f"declare it like `{param.name}: f32[P, {grid.cols}]`")
        return None
    if (len(dims) == 2) != expr.ellipsis:
        form = f"{param.name}[index{', ...' if len(dims) == 2 else ''}]"
        text = f"`{param.name}` has {len(dims)} extent{'s' if len(dims) > 1 else ''}, and its rows are read by `{form}`"
        report.add("E0308", expr.span, text, f"write `{form}`")
        return None
    if grid.col_of(index.type.dims) is not None:
        text = f"a gather along columns: the index is {index.type}, one number for each column"
        help = "an index may differ from row to row only; `pick` and `onehot` address a column by its index"
        report.add("E0308", expr.index.span, text, help)
        return None
    rest = dims[1:]
    if rest and (rest[0].tiled or grid.part(rest[0]) not in ("full", "inner", "outer")):
        text = f"the columns of `{param.name}` are {rest[0]}, which is no extent of the tile [{grid.rows}, {grid.cols}]"
        split = f"{grid.split.outer} * {grid.split.inner}" if grid.split is not None else "H * D"
        help = f"its columns are {grid.cols}, or those of one head where `{grid.cols.axis} = {split}`"
        report.add("E0307", expr.span, text, help)
        return None
    return tuple(d for d in (grid.row_of(index.type.dims), *rest) if d is not None)


def picked(report: Report, grid: Grid, expr: s.Call, args: list[Value], spans: list[Span]) -> tuple[Dim, ...] | None:
    """`pick` and `onehot` address one column for each row."""
    index = args[0] if expr.function == "onehot" else args[1]
    at = spans[0] if expr.function == "onehot" else spans[1]
    if grid.col_of(index.type.dims) is not None:
        text = f"the index of `{expr.function}` is {index.type}: it must be one column number for each row"
        report.add("E0308", at, text, f"pass an integer input [{grid.rows}]")
        return None
    if len(args) == 3 and args[2].type.dims:
        text = f"`ignore` is one number, and this is {args[2].type}"
        report.add("E0203", spans[2], text, "pass a number or a scalar input")
        return None
    if expr.function == "onehot":
        return grid.rows, grid.cols
    x = args[0]
    if not grid.is_tile(x.type.dims):
        text = f"`pick` reads a column of a tile, and this is {x.type}"
        report.add("E0310", spans[0], text, f"pick from a value of [{grid.rows}, {grid.cols}]")
        return None
    return (grid.rows,)


# -- class 1: pairs ------------------------------------------------------------------------------------------------


def halved(report: Report, grid: Grid | None, value: Value, expr: s.Call) -> tuple[Dim, ...] | None:
    """`pairs` takes columns (2j, 2j+1): the only neighbours that one thread holds."""
    if grid is None:
        refuse_kind(report, expr, "reduce")
        return None
    col = grid.col_of(value.type.dims)
    if col is None or grid.part(col) not in ("full", "inner"):
        text = f"`pairs` takes neighbouring columns 2j and 2j+1, and this is {value.type}"
        help = "a value without columns is the same in both: use it as it is"
        report.add("E0306", expr.span, text, help)
        return None
    half = col.scaled(HALF)
    if grid.part(half) is None:
        text = f"`pairs` of {value.type} would be narrower than half the accumulator's {grid.cols}"
        report.add("E0213", expr.span, text, "a value is half, once or twice as wide as the accumulator")
        return None
    return (*value.type.dims[:-1], half)


def doubled(report: Report, grid: Grid | None, dims: tuple[Dim, ...], expr: s.Call) -> tuple[Dim, ...] | None:
    """`unpairs` interleaves two values into one of twice the width."""
    if grid is None:
        refuse_kind(report, expr, "reduce")
        return None
    col = grid.col_of(dims)
    if col is None or grid.part(col) not in ("full", "inner"):
        text = f"`unpairs` interleaves columns, and its operands are [{', '.join(map(str, dims))}]"
        report.add("E0306", expr.span, text, "at least one operand needs columns")
        return None
    wide = col.scaled(DOUBLE)
    if grid.part(wide) is None:
        text = f"`unpairs` of [{', '.join(map(str, dims))}] would be wider than twice the accumulator's {grid.cols}"
        report.add("E0213", expr.span, text, "a value is half, once or twice as wide as the accumulator")
        return None
    return (*dims[:-1], wide)


# -- classes 4 and 5: tile reductions ------------------------------------------------------------------------------


def reduced(report: Report, grid: Grid, expr: s.Call, value: Value, over: Dim) -> tuple[Dim, ...] | None:
    """The extents of a tile's partials: [M, tiles(N)], [tiles(M), N], or [M, H] for a segment."""
    name, dims = expr.function, value.type.dims
    if not grid.is_tile(dims):
        text = f"`{name}` reduces a tile, and this is {value.type}"
        report.add("E0310", expr.span, text, f"a tile has extents [{grid.rows}, {grid.cols}]")
        return None
    if name == "segment_sum":
        if grid.split is None or over != grid.split.inner:
            wanted = grid.split.inner if grid.split is not None else None
            text = f"`segment_sum` runs over the inner factor of a split column axis, not over {over}"
            help = f"write `over={wanted}`" if wanted is not None else f"declare `{grid.cols.axis} = H * D`"
            report.add("E0310", expr.span, text, help)
            return None
        return grid.rows, grid.split.outer
    along_cols = over in (grid.cols, axis_dim(grid.cols.axis or ""), dims[1])
    along_rows = over in (grid.rows, axis_dim(grid.rows.axis or ""))
    if along_cols:
        return grid.rows, tiles_dim(grid.cols.axis or "")
    if along_rows and name in ("tile_sum", "tile_max", "tile_absmax"):
        return tiles_dim(grid.rows.axis or ""), dims[1]
    if along_rows:
        text = f"`{name}` carries a state across the columns of a tile, not across its rows"
        report.add("E0310", expr.span, text, f"write `over={grid.cols.axis}`")
        return None
    text = f"`{name}` runs over the row or the column axis of the tile, not over {over}"
    report.add("E0310", expr.span, text, f"write `over={grid.cols.axis}` or `over={grid.rows.axis}`")
    return None


def refuse_tile_result(report: Report, value: Value, span: Span) -> None:
    if value.op == "pick":
        text = "a picked element is known to one tile only, so the same kernel can only store it"
    else:
        text = f"the result of `{value.op}` is a partial of one tile, so this kernel can only store it"
    notes = [Note("made here", value.span)] if value.span != span else []
    report.add("E0305", span, text, "store it, and combine the partials in a `reduce`", notes)


def refuse_kind(report: Report, expr: s.Call, kind: str) -> None:
    """An operation of kernels in a reduce, or the other way round."""
    name = expr.function
    if kind == "reduce":
        here = {"tile_sum": "sum(x, over=…)", "tile_max": "max(x, over=…)", "tile_absmax": "max(abs(x), over=…)"}
        help = f"use `{here[name]}`" if name in here else None
        text = f"`{name}` needs a tile, and a reduce has none"
        report.add("E0311", expr.span, text, help or "compute it in a kernel or a map")
        return
    text = f"`{name}(…, over=…)` needs all tiles, and a {kind} sees one"
    help = f"use `tile_{name}` here and `{name}` in a reduce" if name != "min" else "reduce in a `reduce`"
    report.add("E0311", expr.span, text, help)


def refuse_mixed_tiles(report: Report, clash: tuple[Dim, Dim], span: Span) -> None:
    a, b = clash
    text = f"{a} of `{a.of}` and of `{b.of}` are different extents: two kernels may be tiled differently"
    report.add("E0314", span, text, "give them one named axis: `mean: f32[M, P], m2: f32[M, P]`")


# -- stores ----------------------------------------------------------------------------------------------------------


def storable(report: Report, grid: Grid | None, target: Output | Param, value: Value, statement: s.StoreTo) -> bool:
    """A store's target has the value's extents, which are the tile's, or more that the value spreads along."""
    dims, wanted = value.type.dims, target.dims
    shape = f"[{', '.join(map(str, wanted))}]"
    if grid is None:
        if any(d.tiled for d in dims):
            opaque = next(d for d in dims if d.tiled)
            text = f"the value is {value.type}: {opaque} is an opaque extent, and only a reduction may consume it"
            report.add("E0406", statement.span, text, f"reduce first: `sum(x, over={opaque})`")
            return False
        if not set(dims) <= set(wanted):
            text = f"the value is {value.type}, and `{target.name}` is {shape}"
            report.add("E0406", statement.span, text, f"reduce the rest, or declare `{_declared(target, dims)}`")
            return False
        return True
    if dims == wanted:
        return True
    if any(d.tiled for d in dims + wanted) or value.op == "segment_sum":
        text = f"the value is {value.type}, and `{target.name}` is {shape}"
        own = any(d.tiled for d in dims) or value.op == "segment_sum"
        help = f"declare `{_declared(target, dims)}`" if own else "only tile reductions give one partial for each tile"
        report.add("E0406", statement.span, text, help)
        return False
    if grid.join(dims, wanted) != wanted or value.op == "pick":
        text = f"the value is {value.type}, and `{target.name}` is {shape}"
        help = "a value spreads along axes that it lacks, and loses none in a store"
        if placed(grid, dims):
            help = f"declare `{_declared(target, dims)}`"
        report.add("E0406", statement.span, text, help)
        return False
    return True


def _declared(target: Output | Param, dims: tuple[Dim, ...]) -> str:
    return f"{target.name}: {target.dtype}[{', '.join(map(str, dims))}]"


def _widths(grid: Grid) -> str:
    half, double = grid.cols.scaled(HALF), grid.cols.scaled(DOUBLE)
    return f"write {half}, {grid.cols} or {double}"


def placed(grid: Grid, dims: tuple[Dim, ...]) -> bool:
    """Whether a store can write these extents from the tile."""
    parts = [grid.part(d) for d in dims]
    tiles = [d.tiled for d in dims]
    return (
        parts in (["row"], ["full"], ["row", "full"], ["row", "outer"])
        or (len(dims) == 2 and parts[0] == "row" and tiles[1] and dims[1].axis == grid.cols.axis)
        or (len(dims) == 2 and tiles[0] and dims[0].axis == grid.rows.axis and parts[1] == "full")
    )


def reduce_output(report: Report, target: Output | Param) -> bool:
    """An output of a reduce has named extents."""
    opaque = next((d for d in target.dims if d.tiled), None)
    if opaque is not None:
        text = f"`{target.name}` has extent {opaque}, which only the kernel that made the partials knows"
        report.add("E0309", target.span, text, "a reduce combines partials: its outputs have named axes")
    return opaque is None


def output_place(report: Report, grid: Grid, target: Output | Param) -> bool:
    """An output's extents are a function of the tile: [M], [N], [M, N] and its widths, or partials."""
    dims = target.dims
    if placed(grid, dims):
        return True
    parts = [grid.part(d) for d in dims]
    shape = f"`{target.name}` is [{', '.join(map(str, dims))}]"
    if len(dims) == 2 and parts[1] == "row" and parts[0] == "full":
        text = f"{shape}, transposed against the tile [{grid.rows}, {grid.cols}]"
        help = f"declare `{_declared(target, (dims[1], dims[0]))}`"
        report.add("E0309", target.span, text, help)
    elif any(d.axis == grid.cols.axis and grid.width(d) not in WIDTHS and not d.tiled for d in dims):
        text = f"{shape}, and columns are half, once or twice the accumulator's {grid.cols}"
        report.add("E0213", target.span, text, _widths(grid))
    else:
        text = f"{shape}, which is no function of the tile [{grid.rows}, {grid.cols}]"
        r, c = grid.rows, grid.cols
        partials = f"[{r}, tiles({c.axis})] or [tiles({r.axis}), {c}]"
        help = f"outputs are [{r}, {c}] or its half and double width, [{r}], [{c}], {partials}"
        report.add("E0309", target.span, text, help)
    return False
