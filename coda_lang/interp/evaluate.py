"""Evaluates a body on one panel of rows, or a reduce on whole arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coda_lang.interp.operations import OPERATIONS, Context
from coda_lang.ir.axes import Grid
from coda_lang.ir.numerics import Array
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel, Value
from coda_lang.ir.types import Dim


@dataclass(frozen=True)
class Schedule:
    """The order of evaluation is the program's; ``last_use[i]`` are the values that are not read after value i."""

    kernel: Kernel
    last_use: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(kernel: Kernel) -> Schedule:
        last = {st.value: len(kernel.values) for st in kernel.stores}
        frees: list[list[int]] = [[] for _ in kernel.values]
        for i in range(len(kernel.values) - 1, -1, -1):
            for a in kernel.values[i].args:
                if a not in last:
                    last[a] = i
                    frees[i].append(a)
        return Schedule(kernel, tuple(map(tuple, frees)))


def evaluate(schedule: Schedule, context: Context) -> dict[int, Array]:
    """The arrays of the values that stores need."""
    kernel = schedule.kernel
    held: dict[int, Array] = {}
    for i, value in enumerate(kernel.values):
        args = [held[a] for a in value.args]
        meaning = OPS[value.op].meaning
        if meaning is None:
            held[i] = OPERATIONS[value.op](context, value, args)
        else:
            held[i] = meaning(*_meet(context, kernel, value, args))
        for a in schedule.last_use[i]:
            del held[a]
    return held


def _meet(context: Context, kernel: Kernel, value: Value, args: list[Array]) -> list[Array]:
    """Arguments in shapes that NumPy broadcasts as the language does: by axis name."""
    types = [kernel.values[a].type.dims for a in value.args]
    if context.grid is None:
        return [align(x, dims, value.type.dims) for x, dims in zip(args, types, strict=True)]
    if context.grid.split is None:
        return args
    return list(_spread_heads(context, context.grid, value.type.dims, types, args))


def align(x: Array, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Array:
    """An array of a reduce with its axes in the order of `wanted`, of length 1 where it does not vary."""
    if dims == wanted:
        return x
    order = sorted(range(len(dims)), key=lambda i: wanted.index(dims[i]))
    lengths = iter(x.shape[i] for i in order)
    return x.transpose(order).reshape([next(lengths) if d in dims else 1 for d in wanted])


def _spread_heads(
    context: Context, grid: Grid, wanted: tuple[Dim, ...], types: list[tuple[Dim, ...]], args: list[Array]
) -> Iterator[Array]:
    """Head-wise columns take the width of the whole: `inner` repeats, each of `outer` fills its head."""
    col = grid.col_of(wanted)
    for x, dims in zip(args, types, strict=True):
        own = grid.col_of(dims)
        if own is None or col is None or own == col:
            yield x
        elif grid.part(own) == "inner":
            heads = context.length(col) // x.shape[1] if x.shape[1] else 0
            yield np.tile(x, (1, heads))
        else:
            yield np.repeat(x, context.length(col) // x.shape[1] if x.shape[1] else 0, axis=1)
