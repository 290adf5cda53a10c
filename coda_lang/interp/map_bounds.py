"""How the maps of the operation table carry errors: one small rule for each.

- fl(x op y) = (x op y)(1 + δ); a transcendental is rounded once as well, and on a GPU has the error its row states;
- a function that is monotone carries an error e at x to max|f(x ± e) − f(x)|; x·y to |x|·eʸ + |y|·eˣ + eˣ·eʸ;
- a comparison whose operands' errors reach each other may go either way, and a `select` by it may give either value;
- what is surely NaN makes its sum, product or quotient so, whatever the other operand is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from coda_lang.interp.approx import TINY, Approx, Array, U, rounded, settled
from coda_lang.ir.numerics import round_to
from coda_lang.ir.ops import OPS

MONOTONE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "ndtr": special.ndtr,
    "sigmoid": special.expit,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
# What an evaluation in f64 is off by, relative to its result: the library's, unless it is said here.
_EVALUATION = {"sqrt": 0.0, "erfc": 2.0**-33, "ndtr": 2.0**-33}


def mapped(op: str, args: list[Approx], *, gpu: bool) -> Approx:
    """A map of values in shapes that broadcast against each other."""
    if op in MONOTONE:
        return _monotone(op, args[0], gpu)
    if op == "div":
        return _quotient(args[0], args[1], gpu)
    if op == "select":
        return _select(*args)
    if args[0].value.dtype.kind != "f" and op in _ARITHMETIC:
        return _of_integers(op, args)
    return _RULES[op](*args)


def to_f32(x: Approx) -> Approx:
    """An integer rounded to f32, a bool as 0 or 1."""
    return rounded(x.value.astype(np.float64), x.error.astype(np.float64))


def round_as(x: Approx, dtype: str) -> Approx:
    """round<dtype>(x): a step function that is monotone. A zero's sign is known where x's is."""
    value = round_to(x.value, dtype)
    moved = _moved(lambda y: round_to(y, dtype), x, value)
    either = (value == 0) & ~x.sure & (np.abs(x.value) <= x.error)
    return settled(value, np.where(either, np.maximum(moved, TINY), moved))


def _of_integers(op: str, args: list[Approx]) -> Approx:
    meaning = OPS[op].meaning
    assert meaning is not None
    value = np.asarray(meaning(*(x.value for x in args)))
    doubt = np.zeros(value.shape, bool)
    for x in args:
        doubt = doubt | ~x.sure
    return Approx(value, np.where(doubt, np.inf, 0.0))


def _finish(value: Array, carried: Array, *args: Approx) -> Approx:
    """Rounds a sum, product or quotient."""
    nan = np.zeros((), bool)
    for x in args:
        nan = nan | x.surely_nan
    # Operands with finite errors are finite or sure: an infinity or a NaN that they give is sure.
    sure = nan | (~np.isfinite(value) & np.isfinite(carried))
    return rounded(np.where(nan, np.nan, value), np.where(sure, 0.0, carried))


def _add(x: Approx, y: Approx) -> Approx:
    return _finish(x.value + y.value, x.error + y.error, x, y)


def _sub(x: Approx, y: Approx) -> Approx:
    return _finish(x.value - y.value, x.error + y.error, x, y)


def _carried_by_product(x: Approx, y: Approx) -> Array:
    carried = np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error
    both = x.sure & y.sure
    infinite = _endless(x, y) | _endless(y, x)
    # A zero times what may be of either sign is a zero of either sign, which a quotient by it would show.
    lost = (x.value * y.value == 0) & ~both & (carried == 0)
    return np.where(both | infinite, 0.0, np.where(lost, TINY, carried))


def _endless(x: Approx, y: Approx) -> Array:
    """Where x is infinite and y surely not zero."""
    return np.isinf(x.value) & x.sure & (np.abs(y.value) > y.error)


def _mul(x: Approx, y: Approx) -> Approx:
    return _finish(x.value * y.value, _carried_by_product(x, y), x, y)


def _fma(x: Approx, y: Approx, z: Approx) -> Approx:
    return _finish(x.value * y.value + z.value, _carried_by_product(x, y) + z.error, x, y, z)


def _quotient(x: Approx, y: Approx, gpu: bool) -> Approx:
    q = x.value / y.value
    room = np.abs(y.value) - y.error
    carried = np.where(room > 0, (x.error + np.abs(q) * y.error) / room, np.inf)
    both = x.sure & y.sure
    infinite = _endless(x, y) | ((y.value == 0) & y.sure & (np.abs(x.value) > x.error))
    lost = (q == 0) & ~both & (carried == 0)
    carried = np.where(both | infinite, 0.0, np.where(lost, TINY, carried))
    return _finish(q, _on_gpu("div", q, carried) if gpu else carried, x, y)


def _on_gpu(op: str, value: Array, carried: Array) -> Array:
    """Adds the GPU's own error of one evaluation. An ulp is at most 2u·|x|, or 2⁻¹⁴⁹ among the subnormals."""
    row = OPS[op]
    size = np.abs(value) + carried
    own = np.where(size == 0, 0.0, row.gpu_ulp * (2 * U * size + TINY)) + row.gpu_abs
    return np.where(np.isfinite(value), carried + own, carried)


def _monotone(op: str, x: Approx, gpu: bool) -> Approx:
    function = MONOTONE[op]
    value = function(x.value)
    carried = _moved(function, x, value)
    finite = np.isfinite(value)
    carried = np.where(finite, carried + _EVALUATION.get(op, 2.0**-50) * np.abs(value), carried)
    return _finish(value, _on_gpu(op, value, carried) if gpu else carried, x)


def _moved(function: Callable[[Array], Array], x: Approx, value: Array) -> Array:
    """How far the result moves with the argument; what is not known could be NaN too."""
    moved = np.zeros(())
    for side in (x.value - x.error, x.value + x.error):
        there = function(side)
        moved = np.maximum(moved, np.where(there == value, 0.0, np.abs(there - value)))
    return np.where(x.sure, 0.0, np.where(np.isnan(moved) | np.isinf(x.error), np.inf, moved))


def _neg(x: Approx) -> Approx:
    return Approx(-x.value, x.error)


def _abs(x: Approx) -> Approx:
    return Approx(np.abs(x.value), x.error)


def _max(x: Approx, y: Approx) -> Approx:
    meaning = OPS["max"].meaning
    assert meaning is not None
    value = meaning(x.value, y.value)
    error = np.maximum(x.error, y.error)
    error = np.where(x.value - x.error > y.value + y.error, x.error, error)
    error = np.where(y.value - y.error > x.value + x.error, y.error, error)
    nan = x.surely_nan | y.surely_nan
    return settled(np.where(nan, np.nan, value), np.where(nan, 0.0, error))


def _min(x: Approx, y: Approx) -> Approx:
    return _neg(_max(_neg(x), _neg(y)))


def _compare(op: str) -> Callable[[Approx, Approx], Approx]:
    meaning = OPS[op].meaning
    assert meaning is not None

    def compare(x: Approx, y: Approx) -> Approx:
        sure = x.sure & y.sure
        if x.value.dtype.kind == "f":
            sure = sure | (np.abs(x.value - y.value) > x.error + y.error) | x.surely_nan | y.surely_nan
        return Approx(meaning(x.value, y.value), ~sure)

    return compare


def _and(x: Approx, y: Approx) -> Approx:
    decided = (~x.value & x.sure) | (~y.value & y.sure)
    return Approx(x.value & y.value, ~decided & (x.error | y.error))


def _or(x: Approx, y: Approx) -> Approx:
    decided = (x.value & x.sure) | (y.value & y.sure)
    return Approx(x.value | y.value, ~decided & (x.error | y.error))


def _not(x: Approx) -> Approx:
    return Approx(~x.value, x.error)


def _select(c: Approx, x: Approx, y: Approx) -> Approx:
    value, error = np.where(c.value, x.value, y.value), np.where(c.value, x.error, y.error)
    kind = value.dtype.kind
    if kind == "b":
        return Approx(value, error | (c.error & ((x.value != y.value) | x.error | y.error)))
    if kind == "i":
        both = (x.value == y.value) & x.sure & y.sure
        return Approx(value, np.where(c.error & ~both, np.inf, error))
    same = (x.value == y.value) & (np.signbit(x.value) == np.signbit(y.value))
    same |= np.isnan(x.value) & np.isnan(y.value)
    apart = np.where(same, 0.0, np.maximum(np.abs(x.value - y.value), TINY))
    return settled(value, np.where(c.error, apart + np.maximum(x.error, y.error), error))


_RULES: dict[str, Callable[..., Approx]] = {
    "neg": _neg,
    "abs": _abs,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "fma": _fma,
    "min": _min,
    "max": _max,
    "and": _and,
    "or": _or,
    "not": _not,
    **{op: _compare(op) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
}
# Of integers they are exact, or in doubt.
_ARITHMETIC = frozenset({"neg", "abs", "add", "sub", "mul", "idiv", "mod", "min", "max"})
