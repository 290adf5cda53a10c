"""Runs a specialised program on NumPy arrays: the product in row panels, the epilogue on each, stores at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coda_lang.binding import Binding
from coda_lang.interp.evaluate import Schedule, align, evaluate
from coda_lang.interp.operations import Context, spread
from coda_lang.ir.axes import Grid
from coda_lang.ir.numerics import Array, from_storage, to_storage
from coda_lang.ir.program import Kernel, Output, Param
from coda_lang.ir.types import Dim

DEFAULT_TILE = (128, 256)
PANEL_ELEMENTS = 1 << 20  # a panel's f32 values stay near the caches
PANEL_ROWS = 256  # at least: BLAS is at full speed from a few hundred rows

Progress = Callable[[int, int], None]


def interpret(
    kernel: Kernel,
    binding: Binding,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    tile: tuple[int, int] = DEFAULT_TILE,
    exact: bool = False,
    acc: Array | None = None,
    progress: Progress | None = None,
) -> None:
    """Evaluate `kernel`, writing into `outputs` (and into `inout` inputs).

    Args:
        inputs: every tensor and scalar input of the specialised kernel, in its storage type.
        outputs: arrays of the outputs' shapes and storage types; one may alias a tile input of the same layout.
        tile: rows and columns of the tile that partials are made for.
        exact: evaluate in f64 throughout, and round at the stores only.
        acc: the accumulator, f32[rows, cols]; replaces the product.
        progress: called with the rows done and their number.
    """
    wide = np.float64 if exact else np.float32
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    schedule = Schedule.of(kernel)
    with np.errstate(all="ignore"):
        if kernel.kind == "reduce":
            _reduce(schedule, Context(binding, None, tile, wide, arrays), outputs)
        else:
            _panels(schedule, binding, arrays, outputs, tile, wide, acc, progress)


def _reduce(schedule: Schedule, context: Context, outputs: Mapping[str, Array]) -> None:
    kernel = schedule.kernel
    held = evaluate(schedule, context)
    for store in kernel.stores:
        target = kernel.target(store.target)
        value = align(held[store.value], kernel.values[store.value].type.dims, target.dims)
        outputs[store.target][...] = to_storage(value, context.binding.dtype(target).name)


def _panels(
    schedule: Schedule,
    binding: Binding,
    arrays: dict[str, Array],
    outputs: Mapping[str, Array],
    tile: tuple[int, int],
    wide: Any,
    acc: Array | None,
    progress: Progress | None,
) -> None:
    kernel = schedule.kernel
    assert kernel.rows is not None
    assert kernel.cols is not None
    split = next((s for s in kernel.splits if s.axis == kernel.cols.axis), None)
    grid = Grid(kernel.rows, kernel.cols, split)
    context = Context(binding, grid, tile, wide, arrays)
    rows, cols = binding.length(kernel.rows), binding.length(kernel.cols)
    step = _panel_rows(rows, cols, tile[0], any(_along_rows(o, kernel.rows) for o in kernel.outputs))
    product = _product(kernel, arrays, wide, acc)
    buffer = np.empty((min(step, rows), cols), wide) if product is not None else None
    for first in range(0, rows, step) if rows else (0,):
        context.first, context.last = first, min(first + step, rows)
        if product is not None and buffer is not None:
            context.accumulator = product(first, context.last, buffer[: context.last - first])
        held = evaluate(schedule, context)
        for store in kernel.stores:
            target = kernel.target(store.target)
            array = arrays[store.target] if isinstance(target, Param) else outputs[store.target]
            value = spread(context, held[store.value], kernel.values[store.value].type.dims, target.dims)
            _store(context, target, array, value, store.accumulate)
        if progress is not None:
            progress(context.last, rows)


def _panel_rows(rows: int, cols: int, tile_rows: int, whole_tiles: bool) -> int:
    step = max(PANEL_ROWS, PANEL_ELEMENTS // max(1, cols))
    if whole_tiles:  # partials over rows need each tile whole
        step = -(-step // tile_rows) * tile_rows
    return max(1, min(step, rows))


def _along_rows(target: Output, rows: Dim) -> bool:
    return any(d.tiled and d.axis == rows.axis for d in target.dims)


def _product(
    kernel: Kernel, arrays: Mapping[str, Array], wide: Any, acc: Array | None
) -> Callable[[int, int, Array], Array] | None:
    """A function that makes rows `first … last` of the accumulator; None in a map."""
    if kernel.product is None:
        return None
    if acc is not None:
        tap = acc.astype(wide, copy=False)
        return lambda first, last, out: tap[first:last]
    p = kernel.product
    a, b = (np.ascontiguousarray(from_storage(arrays[name], wide)) for name in (p.a, p.b))
    left, right = a.T if p.a_transposed else a, b.T if p.b_transposed else b
    return lambda first, last, out: np.matmul(left[first:last], right, out=out)


def _store(context: Context, target: Output | Param, array: Array, value: Array, accumulate: bool) -> None:
    """Round once and write the current rows."""
    grid = context.grid
    assert grid is not None
    dtype = context.binding.dtype(target).name
    parts = [grid.part(d) for d in target.dims]
    if target.dims[0].tiled:
        start = context.first // context.tile[0]
        place = array[start : start + value.shape[0]]
    elif parts[0] == "row":
        place = array[context.first : context.last]
        value = value[:, 0] if len(parts) == 1 else value
    elif context.first:
        return  # a row vector is the same for every panel, and is added only once
    else:
        place, value = array, value[0]
    if accumulate:
        value = from_storage(place, value.dtype) + value
    place[...] = to_storage(np.broadcast_to(value, place.shape), dtype)
