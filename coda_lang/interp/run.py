"""Runs a specialised program on NumPy arrays.

The product is made in blocks of rows, by all threads that BLAS has. The epilogue and its stores then go over a block
in strips, several at a time, each so small that its values stay in a core's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
BLOCK_ELEMENTS = 1 << 23  # of the accumulator held at once
STRIP_ELEMENTS = 1 << 18
WORKERS = min(4, os.cpu_count() or 1)  # NumPy lets go of Python's lock while it computes; each holds a strip's values

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
        outputs: arrays of the outputs' shapes and storage types; one may lie over a tile input of the same layout.
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
            _tiles(schedule, binding, arrays, outputs, tile, wide, acc, progress)


def _reduce(schedule: Schedule, context: Context, outputs: Mapping[str, Array]) -> None:
    kernel = schedule.kernel
    held = evaluate(schedule, context)
    for store in kernel.stores:
        target = kernel.target(store.target)
        value = align(held[store.value], kernel.values[store.value].type.dims, target.dims)
        outputs[store.target][...] = to_storage(value, context.binding.dtype(target).name)


def _tiles(
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
    whole = Context(binding, Grid(kernel.rows, kernel.cols, split), tile, wide, arrays)
    rows, cols = binding.length(kernel.rows), binding.length(kernel.cols)
    # Partials over rows need each tile whole.
    unit = tile[0] if any(_along_rows(o, kernel.rows) for o in kernel.outputs) else 1
    block, strip = (_rows(elements, cols, unit) for elements in (BLOCK_ELEMENTS, STRIP_ELEMENTS))
    product = _product(kernel, arrays, wide, acc)
    buffer = np.empty((min(block, rows), cols), wide) if product is not None else None
    for first, last in _ranges(0, rows, block):
        made = product(first, last, buffer[: last - first]) if product is not None and buffer is not None else None

        def epilogue(part: tuple[int, int], made: Array | None = made, start: int = first) -> int:
            accumulator = made[part[0] - start : part[1] - start] if made is not None else None
            _strip(schedule, replace(whole, first=part[0], last=part[1], accumulator=accumulator), outputs)
            return part[1]

        for done in _each(epilogue, _ranges(first, last, strip)):
            if progress is not None:
                progress(done, rows)


def _strip(schedule: Schedule, context: Context, outputs: Mapping[str, Array]) -> None:
    """The epilogue on the context's rows."""
    kernel = schedule.kernel
    with np.errstate(all="ignore"):  # a setting of each thread
        held = evaluate(schedule, context)
        for store in kernel.stores:
            target = kernel.target(store.target)
            array = context.inputs[store.target] if isinstance(target, Param) else outputs[store.target]
            value = spread(context, held[store.value], kernel.values[store.value].type.dims, target.dims)
            _store(context, target, array, value, store.accumulate)


def _rows(elements: int, cols: int, unit: int) -> int:
    """How many rows have about so many elements, in units."""
    return max(1, elements // max(1, cols) // unit) * unit


def _ranges(first: int, last: int, step: int) -> list[tuple[int, int]]:
    """The parts of a range; nothing is a part too, since a row vector is stored even if there are no rows."""
    return [(i, min(i + step, last)) for i in range(first, last, step)] or [(first, last)]


def _each(work: Callable[[tuple[int, int]], int], parts: list[tuple[int, int]]) -> Iterator[int]:
    """The results of `work` in order, made by several threads."""
    if len(parts) == 1 or WORKERS == 1:
        yield from map(work, parts)
    else:
        with ThreadPoolExecutor(WORKERS) as pool:
            yield from pool.map(work, parts)


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
    a, b = (arrays[name].astype(wide, order="C", copy=False) for name in (p.a, p.b))
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
        return  # a row vector is the same in every strip, and is added only once
    else:
        place, value = array, value[0]
    if accumulate:
        value = from_storage(place, value.dtype) + value
    place[...] = to_storage(np.broadcast_to(value, place.shape), dtype)
