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
