"""Numbers of open kind: literals, lengths, and what is made of them, stored as integers and as floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.errors import CodaError

M, N = 3, 5
X = np.arange(M * N, dtype=np.float32).reshape(M, N) - 6
R = np.array([-1, 0, 2], np.float32)

# Text beside NumPy's value.
Term = tuple[str, Any]
LEAVES: list[Term] = [("M", M), ("N", N)]
CONDITIONS: list[Term] = [("x > 0", X > 0), ("r >= 0", (R >= 0)[:, None]), ("x == r", R[:, None] == X)]


def _operation(parts: tuple[str, Term, Term, Term]) -> Term:
    op, (c, where), (a, x), (b, y) = parts
    return {
        "+": (f"({a} + {b})", x + y),
        "-": (f"({a} - {b})", x - y),
        "*": (f"({a} * {b})", x * y),
        "neg": (f"(-{a})", -x),
        "min": (f"min({a}, {b})", np.minimum(x, y)),
        "max": (f"max({a}, {b})", np.maximum(x, y)),
        "abs": (f"abs({a})", np.abs(x)),
        "select": (f"select({c}, {a}, {b})", np.where(where, x, y)),
    }[op]


OPERATIONS = st.sampled_from(["+", "-", "*", "neg", "min", "max", "abs", "select", "select"])
TERMS = st.recursive(
    st.sampled_from(LEAVES) | st.integers(0, 9).map(lambda i: (str(i), i)),
    lambda terms: st.tuples(OPERATIONS, st.sampled_from(CONDITIONS), terms, terms).map(_operation),
    max_leaves=6,
)


def program(text: str) -> str:
    return (
        "map m<M, N>(x: f32[M, N], r: f32[M], u: f32[N])\n"
        "  -> (i: i32[M, N], j: i64[M, N], f: f32[M, N], b: bf16[M, N]) {\n"
        f"    k = {text} + select(x > 1e30, 1, 0)\n    i <- k\n    j <- k\n    f <- k\n    b <- k * u\n}}\n"
    )


@given(TERMS)
def test_one_number_as_integers_and_floats(term: Term) -> None:
    text, value = term
    value = np.broadcast_to(value, (M, N))
    if np.abs(value).max() > 2**24:  # past which an f32 rounds
        return
    kernel = coda.loads(program(text)).m
    out = kernel.interpret(x=X, r=R, u=np.ones(N, np.float32))
    for name, dtype in (("i", np.int32), ("j", np.int64), ("f", np.float32)):
        assert out[name].dtype == dtype
        np.testing.assert_array_equal(out[name], value)
    np.testing.assert_array_equal(out["b"], value.astype(out["b"].dtype))


@given(TERMS)
def test_the_backend_takes_them(term: Term) -> None:
    kernel = coda.loads(program(term[0])).m
    call = kernel.caller.call({"x": X, "r": R, "u": R[:1].repeat(N)}, None, None)
    unit = kernel.gpu.emit(call, kernel.gpu.config(call, None, False), False)
    assert isinstance(unit, Emitted)


@pytest.mark.parametrize(
    ("text", "code", "span"),
    [
        ("select(1, 2, 3)", "E0202", "1"),
        ("select(x, 2, 3)", "E0202", "x"),
        ("select(x > 0, 1, 2 > 1)", "E0205", "select(x > 0, 1, 2 > 1)"),
        ("select((x > 0) == 1, 1, 2)", "E0205", "(x > 0) == 1"),
        ("select(x > 0, 1, 2.5)", "E0405", "i <- select(x > 0, 1, 2.5)"),
    ],
)
def test_what_is_still_wrong(text: str, code: str, span: str) -> None:
    with pytest.raises(CodaError) as caught:
        coda.loads(f"map m<M, N>(x: f32[M, N]) -> (i: i32[M, N]) {{\n    i <- {text}\n}}\n")
    (error,) = [d for d in caught.value.diagnostics if d.code.startswith("E")]
    assert (error.code, error.span.text) == (code, span)


def test_extents_that_do_not_meet_are_told_where_they_are() -> None:
    with pytest.raises(CodaError) as caught:
        coda.loads(
            "map m<M, N>(x: f32[M, N]) -> (i: i32[M, N]) {\n    a, b = pairs(x)\n"
            "    k = select(x > 0, 1, 0) + select(a > b, 1, 0)\n    i <- k\n}\n"
        )
    (error,) = [d for d in caught.value.diagnostics if d.code.startswith("E")]
    assert (error.code, error.span.text) == ("E0203", "select(x > 0, 1, 0) + select(a > b, 1, 0)")
