"""Holds results against the reference: the error of every output beside the bound that it must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coda_lang.interp.bounds import Analysis
from coda_lang.ir.numerics import Array
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel

_LARGEST = {"f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38}


@dataclass(frozen=True)
class Compared:
    """One output: its largest error, the largest share of its bound that an element uses, and the bound there."""

    name: str
    error: float
    bound: float
    share: float
    elements: int
    wrong: int
    first_wrong: tuple[int, ...] | None

    @property
    def ok(self) -> bool:
        return self.wrong == 0


def compare(
    kernel: Kernel,
    arguments: Mapping[str, Any],
    results: Mapping[str, Array],
    tile: tuple[int, int],
    *,
    acc: Array | None = None,
    gpu: bool = True,
) -> list[Compared]:
    """Compare results with exact arithmetic, within the bounds of a running error analysis.

    Args:
        kernel: specialised to the call.
        arguments: every input of the call as NumPy arrays and numbers, and axis lengths by name.
        results: the outputs, in their storage types.
        tile: the tile that partials were made for.
        acc: the accumulator that the results were made from, if it is known: its own error is then not granted.
        gpu: grant the errors that the operation table states for the GPU.
    """
    analysis = Analysis(kernel, arguments, tile=tile, gpu=gpu, acc=acc)
    return [_compared(analysis, name, got) for name, got in results.items()]


def _compared(analysis: Analysis, name: str, got: Array) -> Compared:
    reference = analysis.output(name)
    want, bound = reference.value, reference.error
    with np.errstate(all="ignore"):
        # Integers are equal or not: an i64 need not fit f64.
        same = (got == want) if want.dtype.kind in "biu" else np.asarray(got.astype(np.float64) == want)
        have, want = got.astype(np.float64), want.astype(np.float64)
        same = same | (np.isnan(have) & np.isnan(want))
        error = np.abs(have - want)
        limit = _LARGEST.get(_type_name(got), np.inf)
        overflow = np.isinf(have) & (np.abs(want) + bound >= limit) & (np.sign(have) == np.sign(want))
        unknown = np.isinf(bound)  # nothing is claimed
        fine = same | unknown | overflow | ((error <= bound) & (bound > 0))
        error = np.where(same | overflow | unknown, 0.0, error)
        share = np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300))
    if not got.size:
        return Compared(name, 0.0, 0.0, 0.0, 0, 0, None)
    worst = np.unravel_index(np.nanargmax(np.where(np.isnan(share), np.inf, share)), share.shape)
    wrong = np.argwhere(~fine)
    first = tuple(int(i) for i in wrong[0]) if len(wrong) else None
    largest = float(np.nanmax(error)) if not np.isnan(error).all() else float("nan")
    return Compared(name, largest, float(bound[worst]), float(share[worst]), got.size, len(wrong), first)


def _type_name(x: Array) -> str:
    from coda_lang.ir.numerics import STORAGE

    return next((n for n, t in STORAGE.items() if t == x.dtype), str(x.dtype))


def bit_equal_outputs(kernel: Kernel) -> set[str]:
    """The outputs that every backend computes to the bit from one accumulator: only exact operations lead to them."""
    exact: list[bool] = []
    for value in kernel.values:
        row = OPS[value.op]
        own = row.gpu_ulp == 0 and row.gpu_abs == 0 and not row.summed
        if isinstance(value.attr, tuple) and value.attr[1] == "count":
            own = True
        exact.append(own and all(exact[a] for a in value.args))
    return {st.target for st in kernel.stores if exact[st.value]}


def same_bits(x: Array, y: Array) -> Array:
    """Elementwise: the same bits, or both NaN."""
    if x.dtype.kind in "biu":
        return np.asarray(x == y)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    signs = np.signbit(wide_x) == np.signbit(wide_y)
    return np.asarray(((wide_x == wide_y) & signs) | (np.isnan(wide_x) & np.isnan(wide_y)))
