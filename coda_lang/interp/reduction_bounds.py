"""How sums, maxima and the stateful transforms carry errors. Each reduces the last axis.

A sum of n terms in any order is off by at most γₙ·Σ|xᵢ| with γₙ = n·u / (1 − n·u), and so is a product's accumulator
with n = K (products of two 16-bit floats are exact in f32, unless they underflow).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from coda_lang.interp.approx import OVERFLOW, TINY, Approx, U, gamma, in_range, known, rounded, settled

Reduce = Callable[[Approx], Approx]


def by_tile(x: Approx, axis: int, width: int, reduce: Reduce) -> Approx:
    """`reduce` of each tile along `axis`: one partial for each."""
    along = moved_last(x, axis)
    length = along.value.shape[-1]
    parts = [reduce(_cut(along, i, i + width)) for i in range(0, length, width)]
    if not parts:
        return known(np.zeros(tuple(0 if i == axis else n for i, n in enumerate(x.value.shape))))
    return Approx(np.stack([p.value for p in parts], axis), np.stack([p.error for p in parts], axis))


def moved_last(x: Approx, axis: int) -> Approx:
    return Approx(np.moveaxis(x.value, axis, -1), np.moveaxis(x.error, axis, -1))


def _cut(x: Approx, first: int, last: int) -> Approx:
    return Approx(x.value[..., first:last], x.error[..., first:last])


def total(x: Approx) -> Approx:
    """Σ in any order."""
    n = x.value.shape[-1]
    value, carried = x.value.sum(-1), x.error.sum(-1)
    size = np.where(np.isfinite(x.value), x.size, 0.0).sum(-1)  # of the finite terms
    unit = gamma(n) if n > 1 else 0.0  # a first term is exact
    # Terms of both signs may overflow on the way, and to either side; infinities stay if the rest can not.
    error = np.where(np.isfinite(carried) & ~np.isfinite(value), 0.0, carried + unit * size)
    error = np.where(size * (1 + unit) >= OVERFLOW, np.inf, error)
    # Nothing but −0 adds up to −0, or to +0 from a start of +0.
    minus = (value == 0) & np.signbit(x.value).all(-1) if n else np.zeros(value.shape, bool)
    nan = x.surely_nan.any(-1)
    return settled(np.where(nan, np.nan, value), np.where(nan, 0.0, np.where(minus, np.maximum(error, TINY), error)))


def product(left: Approx, right: Approx, *, gpu: bool) -> Approx:
    """The accumulator, f32[rows, columns]. Tensor cores cut the products' sum where f32 rounds: twice the unit; and
    they need not keep products below 2⁻¹²⁶."""
    depth = left.value.shape[1]
    value = left.value @ right.value
    a, b = (np.where(np.isfinite(x.value), np.abs(x.value), 0.0) for x in (left, right))
    size, carried = a @ b, np.zeros(())
    if left.error.any() or right.error.any():
        carried = left.error @ b + a @ right.error + left.error @ right.error
        size = size + carried
    unit = gamma(depth * (2 if gpu else 1))
    error = carried + unit * size + np.where(size == 0, 0.0, depth * (2.0**-126 if gpu else TINY))
    error = np.where(~np.isfinite(value) & np.isfinite(carried), 0.0, error)
    error = np.where(size * (1 + unit) >= OVERFLOW, np.inf, error)
    if depth and (size == 0).any():  # −0, or +0 from a start of +0
        signs = [[np.signbit(x.value) == s for s in (False, True)] for x in (left, right)]
        plus = sum(p.astype(np.float64) @ q.astype(np.float64) for p, q in zip(*signs, strict=True))
        error = np.where((size == 0) & (plus == 0) & np.isfinite(value), TINY, error)
    return settled(value, error)


def largest(x: Approx) -> Approx:
    """−∞ of nothing; NaN if any is. Only what may be the largest matters."""
    if not x.value.shape[-1]:
        return known(np.full(x.value.shape[:-1], -np.inf))
    nan = x.surely_nan.any(-1)
    low = np.where(np.isnan(x.value), -np.inf, x.value - x.error)
    least = np.where(np.isnan(low), -np.inf, low).max(-1, keepdims=True)
    candidate = ~(x.value + x.error < least)
    error = np.where(candidate, x.error, 0.0).max(-1)
    return settled(np.where(nan, np.nan, x.value.max(-1)), np.where(nan, 0.0, error))


def smallest(x: Approx) -> Approx:
    top = largest(Approx(-x.value, x.error))
    return Approx(-top.value, top.error)


def largest_size(x: Approx) -> Approx:
    return largest(Approx(np.abs(x.value), x.error))


def logsumexp(x: Approx, *, gpu: bool) -> Approx:
    """It changes by at most the largest change of its arguments. The computed one adds, on a sum of n terms that is at
    least 1: n·u/e from rounding x − max (t·e⁻ᵗ ≤ 1/e), 2u from each exp, γₙ from the sum; then two roundings.

    A GPU takes powers of two, so it rounds max·log₂e as well, and its logarithm is off by 2⁻²²; it holds for
    |x| < 2.3e38.
    """
    n = x.value.shape[-1]
    value = special.logsumexp(x.value, axis=-1)
    relative = U * n / np.e + 2 * U + gamma(n)
    error = x.error.max(-1) + 2 * relative + U * (np.log(n) + 1) + U * np.abs(value)
    top = np.where(np.isfinite(x.value), x.size, 0.0).max(-1)
    if gpu:
        error = error + relative + 2.0**-21 + 4 * U * top
    nan = x.surely_nan.any(-1)
    sure = nan | (~np.isfinite(value) & x.sure.all(-1))
    error = np.where(sure, 0.0, error)
    if gpu:
        error = np.where((top >= 2.3e38) & ~nan, np.inf, error)
    return settled(np.where(nan, np.nan, value), error)


def welford(x: Approx, part: str, *, gpu: bool) -> Approx:
    """∂M2/∂xᵢ = 2(xᵢ − mean), so errors eᵢ move M2 by at most Σ 2|xᵢ − mean|·eᵢ + Σ eᵢ²; the squares and their sum add
    γₙ₊₂. A GPU merges means that are off by up to δ, as if each xᵢ were: 2√(n·M2)·δ + n·δ²; and one infinity may leave
    an infinity or a NaN."""
    n = x.value.shape[-1]
    if part == "count":
        return known(np.full(x.value.shape[:-1], float(n)))
    whole = total(x)
    mean = rounded(whole.value / n, whole.error / n)
    off = gamma(2 * n + 8) * np.abs(x.value).mean(-1) if gpu else np.zeros(())
    drift = np.where(np.isfinite(mean.value), mean.error + off, np.inf if gpu else mean.error)
    nan = x.surely_nan.any(-1)
    if part == "mean":
        return settled(mean.value, np.where(nan, 0.0, drift))
    away = np.abs(x.value - (whole.value / n)[..., None])
    m2 = (away**2).sum(-1)
    error = (2 * away * x.error + x.error**2).sum(-1) + gamma(n + 2) * ((away + x.error) ** 2).sum(-1)
    error = error + np.where((away + x.error).max(-1) > 0, (n + 1) * TINY, 0.0)  # squares that underflow
    if gpu:
        error = error + gamma(8 * n + 32) * m2 + 2 * np.sqrt(n * m2) * drift + n * drift**2
    sure = ~np.isfinite(m2) & np.isfinite(drift) & x.sure.all(-1)
    return in_range(np.where(nan, np.nan, m2), np.where(nan | sure, 0.0, error))
