"""Evaluates a body on one panel of rows, or a reduce on whole arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coda_lang.interp.operations import OPERATIONS, Context, full, spread
from coda_lang.ir.numerics import Array
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel
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
        types = [kernel.values[a].type.dims for a in value.args]
        meaning = OPS[value.op].meaning
        if meaning is None:
            whole = [full(context, x, dims) for x, dims in zip(args, types, strict=True)]
            result = OPERATIONS[value.op](context, value, whole)
        else:
            result = meaning(*(_meet(context, x, d, value.type.dims) for x, d in zip(args, types, strict=True)))
        held[i] = np.asarray(result)  # NumPy makes scalars of arrays without axes
        for a in schedule.last_use[i]:
            del held[a]
    return held


def _meet(context: Context, x: Array, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Array:
    """An argument in a shape that NumPy broadcasts as the language does: by axis name."""
    return align(x, dims, wanted) if context.grid is None else spread(context, x, dims, wanted)


def align(x: Array, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Array:
    """An array of a reduce with its axes in the order of `wanted`, of length 1 where it does not vary."""
    if dims == wanted:
        return x
    order = sorted(range(len(dims)), key=lambda i: wanted.index(dims[i]))
    lengths = iter(x.shape[i] for i in order)
    return x.transpose(order).reshape([next(lengths) if d in dims else 1 for d in wanted])
