"""Every map of the operation table against exact arithmetic, in both modes, and the values that the language states."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from evaluator import rounded, ulp
from rows import CASES, CORRECTLY_ROUNDED, MAPS, ORACLES, TINY, check_floats, check_row, floats, nearest, run

import coda_lang as coda
from coda_lang.ir.ops import OPS


def test_every_row_has_an_oracle() -> None:
    assert set(ORACLES) == {row.name for row in MAPS}


@pytest.mark.parametrize(("name", "kinds"), CASES)
def test_row(name: str, kinds: str) -> None:
    check_row(name, kinds, 200)


@pytest.mark.parametrize("seed", range(3))
def test_fma_rounds_once(seed: int) -> None:
    """Sums next to the middle of two f32 numbers, where rounding the product or the sum first would show."""
    rng = np.random.default_rng(seed)
    n = 1500
    x, y = (1 + rng.integers(0, 2**23, n) * 2.0**-23 for _ in range(2))
    exponent = rng.integers(-60, 60, n)
    x, y = (x * 2.0**exponent).astype(np.float32), (y * rng.choice([-1, 1], n)).astype(np.float32)
    product = x.astype(np.float64) * y
    z = (rng.choice([-1, 1], n) * product * 2.0 ** rng.integers(-30, 30, n)).astype(np.float32)
    half = n // 2
    z[:half] = rounded(-product[:half]) + rng.integers(-1, 2, half) * ulp(product[:half])  # cancels
    small = np.arange(n) % 7 == 0
    x[small], z[small] = x[small] * np.float32(2.0**-70), z[small] * np.float32(2.0**-130)
    args = [x, y, z]
    check_floats("fma", run(OPS["fma"], "FFF", args), args)


@pytest.mark.parametrize("name", [row.name for row in MAPS if row.result in "FN" and "F" in row.params + "F"])
def test_exact_mode(name: str) -> None:
    """In exact mode a row is evaluated in f64; of f32 arguments the stored result can differ by one rounding only."""
    row = OPS[name]
    kinds = "".join({"N": "F", "A": "F"}.get(k, k) for k in row.params)
    if set(kinds) - {"F"}:
        pytest.skip("integers are the same in both modes")
    args = floats(100, len(kinds), 1)
    got, plain = run(row, kinds, args, exact=True), run(row, kinds, args)
    same = (got == plain) | (np.isnan(got) & np.isnan(plain))
    if name in CORRECTLY_ROUNDED - {"fma"} or name == "div":
        assert same.all()
    else:
        near = np.isfinite(got) & np.isfinite(plain)
        assert (same | near).all()
        assert (np.abs(got[near].astype(np.float64) - plain[near]) <= ulp(plain[near].astype(np.float64))).all()


@pytest.mark.parametrize(
    ("call", "x", "y"),
    [
        ("relu(x)", math.nan, math.nan),
        ("relu(x)", -0.0, 0.0),
        ("relu(x)", -math.inf, 0.0),
        ("relu_sq(x)", 3.0, 9.0),
        ("relu_sq(x)", -3.0, 0.0),
        ("silu(x)", -math.inf, math.nan),
        ("silu(x)", math.inf, math.inf),
        ("silu(x)", -0.0, -0.0),
        ("gelu(x)", math.inf, math.inf),
        ("gelu(x)", -math.inf, math.nan),
        ("clamp(x, -1.0, 1.0)", math.nan, math.nan),
        ("clamp(x, -1.0, 1.0)", -math.inf, -1.0),
        ("clamp(x, -1.0, 1.0)", 5.0, 1.0),
        ("softplus(x)", -math.inf, 0.0),
        ("softplus(x)", math.inf, math.inf),
        ("softplus(x)", 200.0, 200.0),
        ("softcap(x, 3.0)", math.inf, 3.0),
        ("reciprocal(x)", -0.0, -math.inf),
        ("x + 0.0", -0.0, 0.0),
        ("x * 0.0", -1.0, -0.0),
        ("x - x", math.inf, math.nan),
        ("max(x, 0.0)", -0.0, 0.0),
        ("max(0.0, x)", -0.0, 0.0),
        ("min(x, 0.0)", -0.0, -0.0),
        ("min(0.0, x)", -0.0, -0.0),
        ("-x", 0.0, -0.0),
        ("select(x > 0.0, x / 0.0, 1.0)", -1.0, 1.0),
        ("log(x)", -1.0, math.nan),
        ("x * 0.5", TINY, 0.0),
        ("x * 0.5", 3 * TINY, 2 * TINY),
    ],
)
def test_stated_values(call: str, x: float, y: float) -> None:
    text = f"map f<M, N>(x: f32[M, N]) -> (y: f32[M, N]) {{ y <- {call} }}"
    got = coda.loads(text).f(x=np.full((1, 2), x, np.float32)).y[0, 0]
    assert (math.isnan(got) and math.isnan(y)) or (got == y and math.copysign(1, got) == math.copysign(1, y)), got


@pytest.mark.parametrize("number", [2**24 + 1, 2**53 + 1, 2**62 + 2**38 + 1, -(2**63), 2**63 - 1, 0])
def test_integers_become_f32_in_one_rounding(number: int) -> None:
    text = "map f<M, N>(i: i64[M, N]) -> (y: f32[M, N]) { y <- f32(i) }"
    assert coda.loads(text).f(i=np.full((1, 1), number)).y[0, 0] == nearest(Fraction(number))
