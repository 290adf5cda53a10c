"""A number in f64 with a bound on the error of the one computed in f32: the standard model, and where it ends.

Standard model (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., ch. 2-4): fl(x) = x(1 + δ) with
|δ| ≤ u = 2⁻²⁴, or an error of at most 2⁻¹⁵⁰ among the subnormals.

An error of 0 says that the computed value is this one, NaN and infinities included; an error of ∞ says that nothing is
known of it. So a value with a finite error that is not 0 is a finite number, and so is the computed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

U = 2.0**-24
TINY = 2.0**-149
OVERFLOW = 2.0**128 - 2.0**103  # what is not below this rounds to ∞ in f32


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


@dataclass
class Approx:
    """An exact value and a bound on the error of the computed one.

    For a bool, `error` is where it may come out the other way. An integer's is 0 or says that it may differ.
    """

    value: Array
    error: Array

    @property
    def size(self) -> Array:
        return np.abs(self.value) + self.error

    @property
    def sure(self) -> Array:
        return np.asarray(self.error == 0)

    @property
    def surely_nan(self) -> Array:
        return np.isnan(self.value) & self.sure


def known(value: Array) -> Approx:
    return Approx(value, np.zeros(value.shape, bool if value.dtype == np.bool_ else np.float64))


def settled(value: Array, error: Array) -> Approx:
    """A bound that is no number, or of what is no finite number, says nothing."""
    return Approx(value, np.where(np.isnan(error) | (~np.isfinite(value) & (error != 0)), np.inf, error))


def in_range(value: Array, error: Array) -> Approx:
    """A value that was, or may have been, too large for f32."""
    size = np.abs(value)
    beyond = size - error >= OVERFLOW
    value = np.where(beyond, np.copysign(np.inf, value), value)
    return settled(value, np.where(beyond, 0.0, np.where(size + error >= OVERFLOW, np.inf, error)))


def rounded(value: Array, carried: Array) -> Approx:
    """One rounding to f32 of what has the error `carried`; none of a number that f32 holds."""
    held = in_range(value, carried)
    error = held.error + U * held.size + TINY
    return settled(held.value, np.where(held.sure & _is_f32(held.value), 0.0, error))


def _is_f32(value: Array) -> Array:
    return np.asarray((value == value.astype(np.float32)) | np.isnan(value))
