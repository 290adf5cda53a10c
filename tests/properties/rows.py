"""Oracles for the maps of the operation table, in exact arithmetic: rationals, integers and mpmath.

`check_row` runs a program for a row, so that the checker's choice of it, loads and stores take part.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from evaluator import ulp

import coda_lang as coda
from coda_lang.ir.ops import OPS, Op

mpmath.mp.dps = 50

TINY, SMALLEST_NORMAL, LARGEST = 2.0**-149, 2.0**-126, float(2**128 - 2**104)
# fmt: off
POSITIVE = [
    0.0, TINY, 3 * TINY, SMALLEST_NORMAL, SMALLEST_NORMAL - TINY, 1e-30, 0.5, 1.0, 1.0 + 2.0**-23, 1.5, 2.0, 3.0,
    10.0, 88.7, 89.0, 104.0, 130.5, 149.0, 1e10, 2.0**24, 1.7e38, LARGEST, math.inf,
]
# fmt: on
SPECIAL = np.array([*POSITIVE, *(-x for x in POSITIVE), math.nan], np.float32)
INTEGERS = np.array([0, 1, -1, 2, 3, -3, 7, -7, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), -(2**63) + 1])


def oracle_sum(*terms: float) -> Fraction | float:
    """An exact sum of finite numbers; IEEE's answer for the others and for the sign of zero."""
    if not all(map(math.isfinite, terms)):
        return sum(terms)
    exact = sum(map(Fraction, terms))
    return exact if exact else -0.0 if all(t == 0 and math.copysign(1, t) < 0 for t in terms) else 0.0


def oracle_mul(x: float, y: float) -> Fraction | float:
    if math.isnan(x) or math.isnan(y) or math.inf in (abs(x), abs(y)):
        return x * y
    return Fraction(x) * Fraction(y) if x and y else math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y))


def oracle_div(x: float, y: float) -> Fraction | float:
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and math.isinf(y)) or (x == 0 and y == 0):
        return math.nan
    sign = math.copysign(1, x) * math.copysign(1, y)
    if y == 0 or math.isinf(x):
        return sign * math.inf
    return Fraction(x) / Fraction(y) if x and math.isfinite(y) else sign * 0.0


def oracle_fma(x: float, y: float, z: float) -> Fraction | float:
    product = oracle_mul(x, y)
    if isinstance(product, Fraction) and math.isfinite(z):
        exact = product + Fraction(z)
        return exact if exact else 0.0  # x·y = −z ≠ 0: +0 in round-to-nearest
    return oracle_sum(float(product) if not isinstance(product, Fraction) else math.copysign(1, product), z)


def oracle_max(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return math.nan
    if x == y == 0:
        return 0.0 if 1 in (math.copysign(1, x), math.copysign(1, y)) else -0.0
    return x if x > y else y


def oracle_idiv(x: int, y: int) -> int:
    return 0 if y == 0 else (x - x % y) // y


def special_or(at: str, f: Callable[[Any], Any]) -> Callable[[float], Any]:
    """mpmath's function, and IEEE's answers at the places it lacks ("place:value …"); NaN gives NaN."""
    answers = dict(pair.split(":") for pair in at.split())

    def oracle(x: float) -> Any:
        if math.isnan(x):
            return math.nan
        if str(x) in answers:
            return float(answers[str(x)])
        y = f(mpmath.mpf(x))
        return math.nan if isinstance(y, mpmath.mpc) and y.imag else mpmath.re(y)

    return oracle


ORACLES: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "add": oracle_sum,
    "sub": lambda x, y: oracle_sum(x, -y),
    "mul": oracle_mul,
    "div": oracle_div,
    "idiv": oracle_idiv,
    "mod": lambda x, y: 0 if y == 0 else x - y * oracle_idiv(x, y),
    "fma": oracle_fma,
    "min": lambda x, y: -oracle_max(-x, -y),
    "max": oracle_max,
    "abs": abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda x, y: bool(x and y),
    "or": lambda x, y: bool(x or y),
    "not": lambda x: not x,
    "select": lambda c, x, y: x if c else y,
    "exp": special_or("inf:inf -inf:0.0", mpmath.exp),
    "exp2": special_or("inf:inf -inf:0.0", lambda x: mpmath.power(2, x)),
    "log": special_or("inf:inf -inf:nan 0.0:-inf -0.0:-inf", mpmath.log),
    "log2": special_or("inf:inf -inf:nan 0.0:-inf -0.0:-inf", lambda x: mpmath.log(x, 2)),
    "log1p": special_or("inf:inf -inf:nan -1.0:-inf -0.0:-0.0", mpmath.log1p),
    "tanh": special_or("inf:1.0 -inf:-1.0 -0.0:-0.0", mpmath.tanh),
    "erf": special_or("inf:1.0 -inf:-1.0 -0.0:-0.0", mpmath.erf),
    "erfc": special_or("inf:0.0 -inf:2.0", mpmath.erfc),
    "ndtr": special_or("inf:1.0 -inf:0.0", mpmath.ncdf),
    "sqrt": special_or("inf:inf -inf:nan -0.0:-0.0", mpmath.sqrt),
    "rsqrt": special_or("inf:0.0 -inf:nan 0.0:inf -0.0:-inf", lambda x: 1 / mpmath.sqrt(x)),
    "sigmoid": special_or("inf:1.0 -inf:0.0", lambda x: 1 / (1 + mpmath.exp(-x))),
}  # fmt: skip
CORRECTLY_ROUNDED = {"neg", "add", "sub", "mul", "div", "fma", "min", "max", "abs", "select", "sqrt"}
# Units in the last place, where a fast approximation takes the place of f64.
A_LITTLE_MORE = {"erfc": "0.502", "ndtr": "0.502"}
MAPS = [row for row in OPS.values() if row.meaning is not None]


def expression(row: Op, names: list[str]) -> str:
    if row.callable:
        return f"{row.name}({', '.join(names)})"
    return f" {row.symbol} ".join(names) if len(names) > 1 else f"{row.symbol} {names[0]}"


def text_of(row: Op, kinds: str) -> str:
    """A program of the row alone: y for x0, x1, …"""
    dtypes = {"F": "f32", "I": "i64", "B": "bool"}
    names = [f"x{i}" for i in range(len(kinds))]
    result = kinds[-1] if row.result in "NA" else row.result
    inputs = ", ".join(f"{n}: {dtypes[k]}[M, N]" for n, k in zip(names, kinds, strict=True))
    return f"map f<M, N>({inputs}) -> (y: {dtypes[result]}[M, N]) {{ y <- {expression(row, names)} }}"


def run(row: Op, kinds: str, args: list[np.ndarray[Any, Any]], exact: bool = False) -> np.ndarray[Any, Any]:
    """The row's result for arrays of one axis, through a program."""
    given = {f"x{i}": x[None, :] for i, x in enumerate(args)}
    out: np.ndarray[Any, Any] = coda.loads(text_of(row, kinds)).f.interpret(**given, exact=exact).y[0]
    return out


def floats(count: int, arity: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Every combination of special numbers (of some, for three), then random ones of every magnitude and mild ones."""
    pool = SPECIAL if arity < 3 else SPECIAL[::3]
    grid = [g.ravel() for g in np.meshgrid(*[pool] * arity)]
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 2**32, (arity, count), dtype=np.uint32).view(np.float32)
    mild = rng.standard_normal((arity, count)).astype(np.float32) * 3
    return [np.concatenate([grid[i], anything[i], mild[i]]) for i in range(arity)]


def arguments(kinds: str, count: int) -> list[np.ndarray[Any, Any]]:
    """Every combination of special numbers for operands of these kinds; of floats `count` random and mild ones too."""
    if "F" not in kinds:
        pools = [INTEGERS if k == "I" else np.array([False, True]) for k in kinds]
        return [g.ravel() for g in np.meshgrid(*pools)]
    args = floats(count, kinds.count("F"))
    return [np.arange(len(args[0])) % 2 == 0, *args] if kinds[0] == "B" else args


def check_floats(name: str, got: Any, args: list[Any]) -> None:
    """Correct rounding for arithmetic; half a unit in the last place, and a little, for f64 functions."""
    for at, y in enumerate(got):
        x = [float(a[at]) if a.dtype != np.bool_ else bool(a[at]) for a in args]
        want = ORACLES[name](*x)
        what = f"{name}{tuple(x)} is {y!r}, exactly {want}"
        if isinstance(want, float):
            assert y == want or (math.isnan(y) and math.isnan(want)), what
            assert math.isnan(y) or math.copysign(1, y) == math.copysign(1, want), what
            continue
        exact = want if isinstance(want, Fraction) else to_fraction(want)
        near = nearest(exact)
        if name in CORRECTLY_ROUNDED or near in (0.0, math.inf, -math.inf):
            assert y == near, what
        else:
            assert math.isfinite(y), what
            allowed = Fraction(float(ulp(np.asarray(near)))) * Fraction(A_LITTLE_MORE.get(name, "0.500001"))
            assert abs(Fraction(float(y)) - exact) <= allowed, what


def to_fraction(x: Any) -> Fraction:
    """An mpmath number, exactly; far outside f32 any number of that size will do."""
    sign, mantissa, exponent, bits = mpmath.mpf(x)._mpf_
    top = exponent + bits
    if mantissa and not -200 < top < 200:
        mantissa, exponent = 1, -200 if top < 0 else 200
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent) * (-1 if sign else 1)


def nearest(x: Fraction) -> float:
    """A rational number rounded once to f32."""
    size = abs(x)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= size < Fraction(2) ** top
    last = Fraction(2) ** (max(top, -126) - 23)
    steps = round(size / last)
    return math.copysign(math.inf if steps * last >= 2**128 else float(steps * last), x)


def kinds_of(row: Op) -> list[str]:
    """The kinds that a row's operands may have."""
    shared = next((letter for letter in "NA" if letter in row.params), None)
    choices = {"N": "FI", "A": "FIB", None: "F"}[shared]
    return ["".join(k if p in "NA" else p for p in row.params) for k in choices]


CASES = [(row.name, kinds) for row in MAPS for kinds in kinds_of(row)]


def check_row(name: str, kinds: str, count: int) -> None:
    row, args = OPS[name], arguments(kinds, count)
    got = run(row, kinds, args)
    if "F" in kinds:
        if row.result == "B":
            want = [ORACLES[name](*(float(a[i]) for a in args)) for i in range(len(got))]
            np.testing.assert_array_equal(got, want)
        else:
            check_floats(name, got, args)
        return
    for at, y in enumerate(got):
        want = ORACLES[name](*(a[at].item() for a in args))
        if "I" in kinds and row.result != "B":
            want = (want + 2**63) % 2**64 - 2**63  # integers wrap
        assert y == want, (name, [a[at] for a in args], y, want)
