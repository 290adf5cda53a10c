"""The error analysis itself: its bounds hold for known errors, and are tight enough to tell programs apart."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from harness import DTYPES, load, normal, operands

import coda_lang as coda
from coda_lang.interp.bounds import Analysis, U, gamma


def analysis(text: str, **args: Any) -> Analysis:
    return Analysis(coda.loads(text)["f"].ir, args)


def test_a_sum_of_products_by_hand() -> None:
    """x·y + z: u·|xy| from the product, u·|xy + z| from the sum, and second-order terms."""
    x, y, z = (np.float32([v]) for v in (1.1, 2.3, -0.7))
    got = analysis("map f<M, N>(x: f32[M, N], y: f32[M, N], z: f32[M, N]) -> (r: f32[M, N]) { r <- x * y + z }",
                   x=x[None], y=y[None], z=z[None]).output("r")  # fmt: skip
    product = Fraction(float(x[0])) * Fraction(float(y[0]))
    exact = product + Fraction(float(z[0]))
    assert abs(Fraction(float(got.value[0, 0])) - exact) < Fraction(1, 10**15)
    first_order = U * float(abs(product) + abs(exact))
    assert first_order <= got.error[0, 0] <= first_order * (1 + 1e-6)


MAP = "map f<M, N>(x: f32[M, N], y: f32[M, N], z: f32[M, N]) -> (r: f32[M, N]) {{ r <- {} }}"


def one(expression: str, x: float, y: float = 0.0, z: float = 0.0, **options: Any) -> tuple[float, float]:
    """The value and the bound of one element."""
    args = {n: np.float32([[v]]) for n, v in (("x", x), ("y", y), ("z", z))}
    out = Analysis(coda.loads(MAP.format(expression))["f"].ir, args, **options).output("r")
    return float(out.value[0, 0]), float(out.error[0, 0])


def test_fma_is_rounded_once() -> None:
    x, y, z = (np.float32(v) for v in (1.1, 2.3, -2.5))
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    value, error = one("fma(x, y, z)", x, y, z)
    assert abs(Fraction(value) - exact) < Fraction(1, 10**15)
    assert U * abs(value) <= error <= U * abs(value) * (1 + 1e-6)
    assert error < one("x * y + z", x, y, z)[1] / 10


@pytest.mark.parametrize("expression", ["x * y + z", "fma(x, y, z)", "x - y * z", "max(x, y) / 2.0", "sqrt(z) + x"])
def test_what_f32_holds_has_no_error(expression: str) -> None:
    assert one(expression, 3.0, 2.0**20, 4.0)[1] == 0


def test_an_integer_that_f32_does_not_hold() -> None:
    value, error = one("x * y", 4097.0, 4097.0)
    assert (value, error) == (4097.0**2, pytest.approx(U * 4097**2, rel=1e-6))


def test_rounding_is_a_step() -> None:
    """What is known rounds to what a store holds; what may lie on either side of a tie may round to either side."""
    assert one("round<bf16>(x)", 1.0 + 2.0**-8) == (1.0, 0.0)
    assert one("round<bf16>(x)", 1.0 + 2.0**-8 + 2.0**-20) == (1.0 + 2.0**-7, 0.0)
    assert one("round<bf16>(x * y)", 1.00390625 / 3, 3.0)[1] == 2.0**-7
    assert one("round<f8e4m3>(x)", 1e9) == (448.0, 0.0)
    assert one("round<f16>(x)", 1e9) == (np.inf, 0.0)


def test_overflow() -> None:
    """What is surely too large is ∞; of what may be, and of what follows from it, nothing is known."""
    assert one("x * y", 1e30, -1e30) == (-np.inf, 0.0)
    assert one("1.0 / (x * y)", 1e30, -1e30) == (0.0, 0.0)
    near = float(np.finfo(np.float32).max) / 3
    assert one("x * 3.0000002 - 1.0", near)[1] == np.inf
    assert one("(x * 3.0000002) * 0.0", near)[1] == np.inf
    assert one("sigmoid(x * 3.0000002)", near)[1] == np.inf  # it could be that of a NaN as well
    assert one("x * 2.9 - 1.0", near)[1] < np.inf


def test_what_is_surely_nan() -> None:
    for expression in ("x + y", "max(y * 1.1, x)", "fma(y, z, x)", "exp(x)", "x * (y / 0.3)"):
        value, error = one(expression, np.nan, 1.3, 2.7)
        assert (np.isnan(value), error) == (True, 0.0), expression
    assert one("max(x, y * 1.1)", np.inf, 1.3) == (np.inf, 0.0)


def test_only_what_may_be_largest_matters() -> None:
    """An uncertain element far below the largest is none of a maximum's error."""
    value, error = one("max(x, exp(y))", 100.0, 1.0)
    assert (value, error) == (100.0, 0.0)
    text = "reduce f<M, N>(x: f32[M, N]) -> (r: f32[M]) { r <- max(select(x > 5.0, x, exp(x)), over=N) }"
    np.testing.assert_array_equal(analysis(text, x=np.float32([[1, 2, 50]])).output("r").error, [0])


def test_integers_are_exact_or_in_doubt() -> None:
    text = "map f<M, N>(x: f32[M, N], i: i64[M, N]) -> (r: i64[M, N]) { r <- select(x * 1.1 > 1.1, i, 2) + i }"
    x, i = np.float32([[1, 2, 1]]), np.array([[9, 2**60 + 1, 2]])
    out = analysis(text, x=x, i=i).output("r")
    np.testing.assert_array_equal(out.error, [[np.inf, 0, 0]])
    assert out.value[0, 1] == 2**61 + 2


def test_a_large_integer_as_a_float() -> None:
    text = "map f<M, N>(i: i64[M, N]) -> (r: f32[M, N]) { r <- f32(i) }"
    out = analysis(text, i=np.array([[2**24, 2**24 + 1]])).output("r")
    assert out.error[0, 0] == 0
    assert 1 <= out.error[0, 1] <= 1.0001


def test_a_comparison_that_may_go_either_way() -> None:
    """Where rounding can turn a condition, the bound covers both branches."""
    text = "map f<M, N>(x: f32[M, N], y: f32[M, N]) -> (r: f32[M, N]) { r <- select(x * y > 1.0, 5.0, 2.0) }"
    x = np.float32([[3.0, 1.0, 0.1]])
    y = np.float32([[1 / 3, 4.0, 0.1]])
    np.testing.assert_array_equal(analysis(text, x=x, y=y).output("r").error, [[3, 0, 0]])


def test_an_inexact_argument_carries_its_error() -> None:
    text = "map f<M, N>(x: f32[M, N]) -> (r: f32[M, N]) { r <- exp(x) }"
    kernel = coda.loads(text)["f"].ir
    got = Analysis(kernel, {"x": np.float32([[2.0]])}, {"x": np.array([[2.01]])}).output("r")
    assert got.value[0, 0] == np.exp(2.01)
    np.testing.assert_allclose(got.error[0, 0], np.exp(2.02) - np.exp(2.01), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_are_tight(dtype: str) -> None:
    """A 16-bit output's bound is little more than the rounding of its store; an f32 one's a few γ."""
    rng = np.random.default_rng(1)
    store = {"bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    args = operands(rng, (20, 64), (30, 64), DTYPES[dtype], 64)
    # Σ|a·b| of normal data is below 0.8·√K here: one γ of that is the accumulator's share.
    share = 5 * gamma(64) * 64**0.5
    rstd = np.ones(20, np.float32)
    swiglu = Analysis(load("rmsnorm_swiglu").rmsnorm_swiglu.ir, args | {"rstd": rstd})
    for name in ("z", "y"):
        out = swiglu.output(name)
        assert (out.error <= 1.001 * store * np.abs(out.value) + share * (1 + np.abs(out.value)) * 4).all()
    norm = Analysis(load("residual_rms").residual_rms.ir,
                    args | {"c": normal(rng, 20, 30, dtype=DTYPES[dtype]), "w": normal(rng, 30)})  # fmt: skip
    sq = norm.output("sq")
    assert (sq.error <= 1e-4 * sq.value).all()
    loss = Analysis(load("cross_entropy").cross_entropy.ir, args | {"target": np.zeros(20, np.int64)})
    assert loss.output("lse").error.max() < 2e-4
    assert loss.output("t").error.max() < 2e-4
