"""The registry of operations that need more than one element: one small function for each.

A function gets the evaluation's `Context`, the value and its argument arrays. Arrays of a kernel or map have two
axes, rows and columns, of length 1 where a value does not vary; those of a reduce have one axis for each extent of
their type. Arguments come at the full length of every extent of their type; results may have length 1 along an
extent where they do not vary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from coda_lang.binding import Binding
from coda_lang.ir.axes import Grid
from coda_lang.ir.numerics import Array, from_storage, round_to
from coda_lang.ir.program import Value
from coda_lang.ir.types import F32, Dim, DType


@dataclass
class Context:
    """Where an evaluation stands: the rows `first … last` of the tile grid, and what it may read."""

    binding: Binding
    grid: Grid | None
    tile: tuple[int, int]
    wide: type  # np.float32, or np.float64 in exact mode
    inputs: dict[str, Array]
    first: int = 0
    last: int = 0
    accumulator: Array | None = None

    def length(self, dim: Dim) -> int:
        return self.binding.length(dim, self.tile)


def full(context: Context, x: Array, dims: tuple[Dim, ...]) -> Array:
    """A view of `x` with the length of each extent of its type: an absent input is one number until then."""
    if context.grid is None:
        return np.broadcast_to(x, [context.length(d) for d in dims])
    row, col = context.grid.row_of(dims), context.grid.col_of(dims)
    rows = 1 if row is None else context.last - context.first
    return np.broadcast_to(x, (rows, 1 if col is None else context.length(col)))


def spread(context: Context, x: Array, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Array:
    """Head-wise columns at the width of the whole: `inner` repeats in each head, each of `outer` fills its own."""
    grid = context.grid
    assert grid is not None
    own, col = grid.col_of(dims), grid.col_of(wanted)
    if own is None or col is None or own == col or x.shape[1] == 1:
        return x
    copies = context.length(col) // x.shape[1] if x.shape[1] else 0
    return np.tile(x, (1, copies)) if grid.part(own) == "inner" else np.repeat(x, copies, axis=1)


Operation = Callable[[Context, Value, list[Array]], Array]
OPERATIONS: dict[str, Operation] = {}


def operation(name: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function
        return function

    return register


# -- numbers and loads -----------------------------------------------------------------------------------------------


@operation("const")
def _const(context: Context, value: Value, args: list[Array]) -> Array:
    dtype: Any = context.wide if value.type.dtype == F32 else np.bool_ if isinstance(value.attr, bool) else np.int64
    return _number(context, value, value.attr, dtype)


@operation("axis")
def _axis(context: Context, value: Value, args: list[Array]) -> Array:
    assert isinstance(value.attr, Dim)
    length = context.length(value.attr)
    return _number(context, value, length, context.wide if value.type.dtype == F32 else np.int64)


def _number(context: Context, value: Value, number: object, dtype: Any) -> Array:
    axes = 2 if context.grid is not None else len(value.type.dims)
    return np.asarray(number).astype(dtype).reshape((1,) * axes)


@operation("acc")
def _acc(context: Context, value: Value, args: list[Array]) -> Array:
    assert context.accumulator is not None
    return context.accumulator


@operation("load")
def _load(context: Context, value: Value, args: list[Array]) -> Array:
    """The part of an input that lies along the current rows, as [rows or 1, columns or 1]."""
    assert isinstance(value.attr, str)
    array = context.inputs[value.attr]
    if context.grid is None:
        return from_storage(array, context.wide)
    parts = [context.grid.part(d) for d in value.type.dims]
    if not parts:
        array = array.reshape(1, 1)
    elif parts == ["row"]:
        array = array[context.first : context.last, None]
    elif len(parts) == 1:
        array = array[None, :]
    else:
        array = array[context.first : context.last]
    return from_storage(array, context.wide)


@operation("row")
def _row(context: Context, value: Value, args: list[Array]) -> Array:
    return np.arange(context.first, context.last, dtype=np.int64)[:, None]


@operation("col")
def _col(context: Context, value: Value, args: list[Array]) -> Array:
    return np.arange(context.length(value.type.dims[0]), dtype=np.int64)[None, :]


@operation("gather")
def _gather(context: Context, value: Value, args: list[Array]) -> Array:
    assert isinstance(value.attr, str)
    table, index = context.inputs[value.attr], args[0][:, 0]
    table = table if table.ndim == 2 else table[:, None]
    inside = (index >= 0) & (index < len(table))
    if not len(table):
        return np.full((len(index), table.shape[1]), np.nan, context.wide)
    rows = from_storage(table[np.where(inside, index, 0)], context.wide)
    return rows if inside.all() else np.where(inside[:, None], rows, context.wide(np.nan))


@operation("pick")
def _pick(context: Context, value: Value, args: list[Array]) -> Array:
    x, index = args[0], np.broadcast_to(args[1], (args[0].shape[0], 1))
    inside = (index >= 0) & (index < x.shape[1])
    if not x.shape[1]:
        picked = np.full_like(x, np.nan, shape=index.shape)
    else:
        picked = np.where(inside, np.take_along_axis(x, np.where(inside, index, 0), axis=1), x.dtype.type(np.nan))
    return picked if len(args) == 2 else np.where(index == args[2], x.dtype.type(0), picked)


@operation("onehot")
def _onehot(context: Context, value: Value, args: list[Array]) -> Array:
    columns = np.arange(context.length(value.type.dims[1]), dtype=np.int64)[None, :]
    return np.asarray((columns == args[0]).astype(context.wide))


# -- maps that are not elementwise arithmetic ------------------------------------------------------------------------


@operation("to_f32")
def _to_f32(context: Context, value: Value, args: list[Array]) -> Array:
    return args[0].astype(context.wide)


@operation("round")
def _round(context: Context, value: Value, args: list[Array]) -> Array:
    assert isinstance(value.attr, DType)
    return round_to(args[0], value.attr.name)


@operation("even")
def _even(context: Context, value: Value, args: list[Array]) -> Array:
    return args[0][:, 0::2]


@operation("odd")
def _odd(context: Context, value: Value, args: list[Array]) -> Array:
    return args[0][:, 1::2]


@operation("unpairs")
def _unpairs(context: Context, value: Value, args: list[Array]) -> Array:
    half = (*value.type.dims[:-1], value.type.dims[-1].scaled(Fraction(1, 2)))
    types = [context.binding.kernel.values[a].type.dims for a in value.args]
    left, right = (spread(context, x, dims, half) for x, dims in zip(args, types, strict=True))
    rows, columns = np.broadcast_shapes(left.shape, right.shape)
    out = np.empty((rows, 2 * columns), left.dtype)
    out[:, 0::2], out[:, 1::2] = left, right
    return out


# -- tile reductions -------------------------------------------------------------------------------------------------


def _by_tile(x: Array, axis: int, width: int, reduce: Callable[[Array], Array]) -> Array:
    """`reduce` (over the last axis) applied to each tile of `x` along `axis`, whole tiles at once."""
    if axis == 0:
        return _by_tile(x.T, 1, width, reduce).T
    rows, length = x.shape
    whole = length // width
    parts = []
    if whole:
        parts.append(reduce(x[:, : whole * width].reshape(rows, whole, width)))
    if length % width:
        parts.append(reduce(x[:, None, whole * width :]))
    return np.concatenate(parts, axis=1) if parts else np.empty((rows, 0), x.dtype)


def _tile_axis(context: Context, value: Value, x: Value) -> tuple[int, int]:
    """The array axis that a tile reduction runs along, and the tile's width in elements of its argument."""
    grid, over = context.grid, value.attr[0] if isinstance(value.attr, tuple) else value.attr
    assert grid is not None
    assert isinstance(over, Dim)
    if over.axis == grid.rows.axis:
        return 0, context.tile[0]
    return 1, int(context.tile[1] * grid.width(x.type.dims[1]))


def _tile_reduction(reduce: Callable[[Array], Array]) -> Operation:
    def apply(context: Context, value: Value, args: list[Array]) -> Array:
        x = context.binding.kernel.values[value.args[0]]
        axis, width = _tile_axis(context, value, x)
        return _by_tile(args[0], axis, width, reduce)

    return apply


def sum_last(x: Array) -> Array:
    """Σ in f64, rounded once: closer to the true sum than any f32 order, and within every bound of one."""
    return np.asarray(x.sum(-1, dtype=np.float64).astype(x.dtype))


def max_last(x: Array) -> Array:
    """The largest; NaN if any is; −inf of nothing; +0 if the largest are zeros of both signs."""
    if not x.shape[-1]:
        return np.full(x.shape[:-1], -np.inf, x.dtype)
    top = x.max(-1)
    zero = top == 0
    if zero.any():
        plus = ((x == 0) & ~np.signbit(x)).any(-1)
        top = np.where(zero, np.where(plus, x.dtype.type(0), x.dtype.type(-0.0)), top)
    return np.asarray(top)


def _logsumexp(x: Array) -> Array:
    wide = x.astype(np.float64)
    top = wide.max(-1, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.exp(wide - shift).sum(-1)) + shift[..., 0]
    return np.asarray(total.astype(x.dtype))


def _absmax(x: Array) -> Array:
    return np.asarray(np.abs(x).max(-1))


OPERATIONS["tile_sum"] = _tile_reduction(sum_last)
OPERATIONS["tile_max"] = _tile_reduction(max_last)
OPERATIONS["tile_absmax"] = _tile_reduction(_absmax)
OPERATIONS["tile_logsumexp"] = _tile_reduction(_logsumexp)


@operation("tile_welford")
def _welford(context: Context, value: Value, args: list[Array]) -> Array:
    assert isinstance(value.attr, tuple)
    part = value.attr[1]

    def reduce(x: Array) -> Array:
        if part == "count":
            return np.full(x.shape[:-1], x.shape[-1], x.dtype)
        mean = x.mean(-1, dtype=np.float64)
        if part == "mean":
            return np.asarray(mean.astype(x.dtype))
        return np.asarray(((x - mean[..., None]) ** 2).sum(-1).astype(x.dtype))

    return _tile_reduction(reduce)(context, value, args)


@operation("segment_sum")
def _segment_sum(context: Context, value: Value, args: list[Array]) -> Array:
    heads = context.length(value.type.dims[1])
    rows, columns = args[0].shape
    return sum_last(args[0].reshape(rows, heads, columns // heads if heads else 0))


# -- reduces ---------------------------------------------------------------------------------------------------------


def _position(context: Context, value: Value) -> int:
    dims = context.binding.kernel.values[value.args[0]].type.dims
    assert isinstance(value.attr, Dim)
    return dims.index(value.attr)


@operation("reduce_sum")
def _reduce_sum(context: Context, value: Value, args: list[Array]) -> Array:
    return sum_last(np.moveaxis(args[0], _position(context, value), -1))


@operation("reduce_max")
def _reduce_max(context: Context, value: Value, args: list[Array]) -> Array:
    return max_last(np.moveaxis(args[0], _position(context, value), -1))


@operation("reduce_min")
def _reduce_min(context: Context, value: Value, args: list[Array]) -> Array:
    return -max_last(-np.moveaxis(args[0], _position(context, value), -1))
