"""Loads widen exactly and stores round once: every format, from f32 and (in exact mode) from f64, to the bit."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from evaluator import FORMATS, rounded

import coda_lang as coda

NUMPY = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
# The tests' own casts of NaN and overflow say so; the package must not (test_calls.py).
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NARROW = ["f16", "bf16", "f8e4m3", "f8e5m2"]


def decode(bits: int, name: str) -> float:
    """The number that a bit pattern stands for, by the format's definition."""
    if name == "f16":
        return float(struct.unpack("<e", struct.pack("<H", bits))[0])
    if name == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    mantissa_bits, bias = (3, 7) if name == "f8e4m3" else (2, 15)
    sign = -1.0 if bits >> 7 else 1.0
    exponent = bits >> mantissa_bits & (1 << 7 - mantissa_bits) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    if name == "f8e4m3" and bits & 0x7F == 0x7F:
        return math.nan
    if name == "f8e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / 2**mantissa_bits
    return sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


def every(name: str) -> np.ndarray[Any, Any]:
    """Every number of a format, in f64."""
    bits = NUMPY[name].itemsize * 8
    return np.array([decode(b, name) for b in range(2**bits)])


def store(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    text = f"map f<M, N>(x: f32[M, N]) -> (y: {name}[M, N]) {{ y <- x }}"
    out: np.ndarray[Any, Any] = coda.loads(text).f(x=x.astype(np.float32)[None, :]).y[0]
    return out


def same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    have = got.astype(np.float64)
    np.testing.assert_array_equal(have, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(have[number]), np.signbit(want[number]))


@pytest.mark.parametrize("name", NARROW)
def test_loads_are_exact(name: str) -> None:
    bits = NUMPY[name].itemsize * 8
    x = np.arange(2**bits).astype(f"u{bits // 8}").view(NUMPY[name])
    text = f"map f<M, N>(x: {name}[M, N]) -> (y: f32[M, N]) {{ y <- x }}"
    same(coda.loads(text).f(x=x[None, :]).y[0], every(name))


def neighbourhood(name: str) -> np.ndarray[Any, Any]:
    """Every number of a format, the middles between neighbours, and the f32 numbers beside those."""
    numbers = np.unique(every(name)[np.isfinite(every(name))])
    if len(numbers) > 5000:
        numbers = np.concatenate([numbers[::17], numbers[:50], numbers[-50:], numbers[np.abs(numbers) < 1e-37][::5]])
        numbers = np.unique(numbers)
    middles = (numbers[1:] + numbers[:-1]) / 2
    top = FORMATS[name].largest
    beyond = np.array([top * f for f in (1.01, 1.03, 1.04, 1.0625, 1.07, 1.125, 1.13, 2, 1e3)] + [math.inf, math.nan])
    x = np.concatenate([numbers, middles, beyond, -beyond, [0.0, -0.0]]).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])


@pytest.mark.parametrize("name", NARROW)
def test_stores_round_to_nearest_even(name: str) -> None:
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([neighbourhood(name), anything, rng.standard_normal(5000).astype(np.float32)])
    same(store(x, name), rounded(x.astype(np.float64), name))


@pytest.mark.parametrize("name", NARROW)
def test_round_is_what_a_store_does(name: str) -> None:
    x = neighbourhood(name)
    text = f"map f<M, N>(x: f32[M, N]) -> (y: f32[M, N], z: f32[M, N]) {{ r = round<{name}>(x)  y <- r  z <- r + 0.0 }}"
    same(coda.loads(text).f(x=x[None, :]).y[0], rounded(x.astype(np.float64), name))


@pytest.mark.parametrize("name", [*NARROW, "f32"])
def test_exact_mode_rounds_once(name: str) -> None:
    """x·(1 + 2⁻⁴⁰) lies beside a middle of the format: rounding to f32 first would move it onto the middle."""
    x = neighbourhood(name) if name != "f32" else np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    text = f"""map f<M, N>(x: f32[M, N], e: f32) -> (up: {name}[M, N], down: {name}[M, N], r: {name}[M, N]) {{
        up <- x + x * e  down <- x - x * e  r <- round<{name}>(x + x * e)
    }}"""
    out = coda.loads(text).f.interpret(x=x[None, :], e=2.0**-40, exact=True)
    wide = x.astype(np.float64)
    same(out.up[0], rounded(wide + wide * 2.0**-40, name))
    same(out.down[0], rounded(wide - wide * 2.0**-40, name))
    same(out.r[0], rounded(wide + wide * 2.0**-40, name))


@pytest.mark.parametrize(
    ("x", "e4m3", "e5m2"),
    [
        (448.0, 448.0, 448.0),
        (464.0, 448.0, 448.0),
        (465.0, 448.0, 448.0),
        (1000.0, 448.0, 1024.0),
        (57344.0, 448.0, 57344.0),
        (61440.0, 448.0, 57344.0),
        (1e9, 448.0, 57344.0),
        (math.inf, 448.0, 57344.0),
        (-math.inf, -448.0, -57344.0),
        (-465.0, -448.0, -448.0),
        (math.nan, math.nan, math.nan),
        (2.0**-10, 0.0, 2.0**-10),
        (3 * 2.0**-11, 2.0**-9, 3 * 2.0**-11),
        (-(2.0**-11), -0.0, -(2.0**-11)),
    ],
)
def test_f8_saturates(x: float, e4m3: float, e5m2: float) -> None:
    same(store(np.array([x]), "f8e4m3"), np.array([e4m3]))
    same(store(np.array([x]), "f8e5m2"), np.array([e5m2]))


@pytest.mark.parametrize("name", NARROW)
def test_accumulating_rounds_the_sum_once(name: str) -> None:
    """d +<- x is round(f32(old) + x)."""
    rng = np.random.default_rng(3)
    old = every(name)[rng.integers(0, len(every(name)), 400)]
    x = (rng.standard_normal(400) * np.where(np.isfinite(old), np.abs(old), 1.0)).astype(np.float32)
    d = old.astype(NUMPY[name])[None, :]
    text = f"map f<M, N>(x: f32[M, N], inout d: {name}[M, N]) -> () {{ d +<- x }}"
    coda.loads(text).f(x=x[None, :], d=d)
    with np.errstate(all="ignore"):
        same(d[0], rounded(rounded(old + x.astype(np.float64)), name))


@pytest.mark.parametrize(("dtype", "low", "high"), [("i32", -(2**31), 2**31 - 1), ("i64", -(2**63), 2**63 - 1)])
def test_integers_and_bools_pass_unchanged(dtype: str, low: int, high: int) -> None:
    text = f"""map f<M, N>(i: {dtype}[M, N], p: bool[M, N]) -> (j: {dtype}[M, N], q: bool[M, N]) {{
        j <- i  q <- not p
    }}"""
    i = np.array([[low, high, 0, -1]], dtype.replace("i", "int"))
    p = np.array([[True, False, True, True]])
    out = coda.loads(text).f(i=i, p=p)
    np.testing.assert_array_equal(out.j, i)
    np.testing.assert_array_equal(out.q, ~p)
