"""The NumPy meaning of every map: one small function each, exact about NaN, infinities and zeros.

A function gets f32 arrays (or f64 ones, in exact mode), i64 arrays or booleans, already broadcast
against each other, and returns an array of the same precision. Transcendentals are evaluated in
f64 and rounded once, so that the reference does not depend on the machine's vector library.
Callers suppress NumPy's floating-point warnings: IEEE results are the defined ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STORAGE: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
F8_MAX = {"f8e4m3": 448.0, "f8e5m2": 57344.0}


def in_f64(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, evaluated in f64 and rounded back to the precision of its argument."""

    def rounded(x: Array) -> Array:
        return function(x.astype(np.float64, copy=False)).astype(x.dtype, copy=False)

    return rounded


def maximum(x: Array, y: Array) -> Array:
    """NaN if either is NaN; max(+0, −0) is +0 in either order, as IEEE 754-2019 `maximum`."""
    out = np.maximum(x, y)
    if out.dtype.kind == "f":
        zeros = (x == 0) & (y == 0)
        if zeros.any():
            out = np.where(zeros, x + y, out)
    return out


def minimum(x: Array, y: Array) -> Array:
    """NaN if either is NaN; min(+0, −0) is −0 in either order."""
    return -maximum(-x, -y) if x.dtype.kind == "f" else np.minimum(x, y)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x·y + z rounded once.

    The product of two f32 is exact in f64. Their f64 sum is rounded to odd, which makes the final
    rounding to f32 correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if x.dtype == np.float64:
        return x * y + z
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = np.asarray(product + addend)
    rest = total - product
    error = (product - (total - rest)) + (addend - rest)
    even = (total.view(np.int64) & 1) == 0
    inexact = (error != 0) & np.isfinite(error) & even
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact, odd, total).astype(np.float32)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x)."""
    wide = x.astype(np.float64)
    np.negative(wide, out=wide)
    np.exp(wide, out=wide)
    wide += 1.0
    np.reciprocal(wide, out=wide)
    return wide.astype(x.dtype)


def integer_divide(x: Array, y: Array) -> Array:
    """⌊x / y⌋; 0 where y is 0."""
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


def modulo(x: Array, y: Array) -> Array:
    """x − y·⌊x / y⌋, of the sign of y; 0 where y is 0."""
    return np.where(y == 0, 0, x % np.where(y == 0, 1, y))


def to_storage(x: Array, dtype: str) -> Array:
    """Round to an element type, to nearest even; f8 clamps to its largest finite value, NaN stays."""
    target = STORAGE[dtype]
    if x.dtype == target:
        return x
    if dtype in F8_MAX:
        x = np.clip(x, -F8_MAX[dtype], F8_MAX[dtype])  # np.clip keeps NaN
    if x.dtype == np.float64 and target.itemsize < 4:
        return _round_once(x, target)
    return x.astype(target)


def from_storage(x: Array, wide: Any = np.float32) -> Array:
    """Widen what a load reads, exactly: floats to `wide`, integers to i64."""
    if x.dtype.kind in "iu":
        return x.astype(np.int64, copy=False)
    if x.dtype.kind == "b":
        return x
    if x.dtype == STORAGE["bf16"] and wide == np.float32:
        bits = x.view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return x.astype(wide, copy=False)


def round_to(x: Array, dtype: str) -> Array:
    """The explicit `round<dtype>(x)`: rounded as a store would, and widened back."""
    return from_storage(to_storage(x, dtype), x.dtype)


def _round_once(x: Array, target: np.dtype[Any]) -> Array:
    """f64 to a narrow type by way of f32 rounded to odd: casts through f32 would round twice."""
    near = x.astype(np.float32)
    back = near.astype(np.float64)
    even = (near.view(np.int32) & 1) == 0
    fix = (back != x) & np.isfinite(x) & even
    away = np.nextafter(near, np.where(x > back, np.inf, -np.inf).astype(np.float32))
    return np.where(fix, away, near).astype(target)


# P and Q of erfc x ≈ P(x) / (Q(x)·e^x²): fitted to erfcx on 0 … 10.2, beyond which an f32 erfc is 0, by least squares
# reweighted towards the largest relative error, which is 2⁻³³·⁵.
_ERFC_P = (
    0.9999999999189151, 1.4342573437046582, 1.0006859499179332, 0.4024231030877154, 0.0928401161320871,
    0.010018787178566354,
)  # fmt: skip
_ERFC_Q = (
    1.0, 2.562636499791023, 2.892311829376154, 1.8556617449808916, 0.7221780600709263, 0.16455374073413911,
    0.017757860778374233,
)  # fmt: skip
_CHUNK = 1 << 15  # elements whose f64 values stay in a core's cache


def erfc(x: Array) -> Array:
    """1 − erf x: of f32, within 0.502 units of its last place in half of SciPy's time; of f64, SciPy's."""
    if x.dtype == np.float64:
        from scipy import special  # not at the top: it takes as long to import as all the rest of the package

        return np.asarray(special.erfc(x))
    return _scaled_erfc(1.0, 1.0, x)


def ndtr(x: Array) -> Array:
    """The normal distribution's Φ(x) = ½·erfc(−x/√2), as accurate as `erfc`."""
    if x.dtype == np.float64:
        from scipy import special  # as above

        return np.asarray(special.ndtr(x))
    return _scaled_erfc(0.5, -math.sqrt(0.5), x)


def _scaled_erfc(factor: float, scale: float, x: Array) -> Array:
    """factor·erfc(scale·x) of f32."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    scratch = np.empty((4, min(_CHUNK, flat.size)))
    for i in range(0, flat.size, _CHUNK):
        part = flat[i : i + _CHUNK]
        np.multiply(part, scale, out=scratch[0, : part.size], dtype=np.float64)
        np.multiply(_erfc(*scratch[:, : part.size]), factor, out=out[i : i + _CHUNK], casting="same_kind")
    return out.reshape(x.shape)


def _erfc(x: Array, sign: Array, p: Array, q: Array) -> Array:
    """Of f64, which it overwrites, in p; the others are scratch."""
    np.copysign(1.0, x, out=sign)
    np.abs(x, out=x)
    np.minimum(x, 11.0, out=x)
    _polynomial(_ERFC_P, x, p)
    _polynomial(_ERFC_Q, x, q)
    x *= x
    q *= np.exp(x, out=x)
    p /= q
    p *= sign  # erfc(−x) = 2 − erfc x
    np.subtract(1.0, sign, out=sign)
    p += sign
    return p


def _polynomial(coefficients: tuple[float, ...], x: Array, out: Array) -> None:
    np.multiply(x, coefficients[-1], out=out)
    for c in coefficients[-2:0:-1]:
        out += c
        out *= x
    out += coefficients[0]


def erf(x: Array) -> Array:
    from scipy import special  # as above

    return np.asarray(special.erf(x))


def rsqrt(x: Array) -> Array:
    """1 / √x: +inf at +0, −inf at −0, NaN below."""
    return 1.0 / np.sqrt(x)
