"""The passes keep every result to the bit, and do what they are for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang import call as calls
from coda_lang.ir import check, passes
from coda_lang.ir.program import Kernel, Number
from programs import programs, random_call, random_program

Pass = Callable[[Kernel], Kernel]


def keep(kernel: Kernel) -> Kernel:
    return kernel


def defaults_only(kernel: Kernel, passed: frozenset[str], outputs: frozenset[str]) -> Kernel:
    """What a call must have, and no pass: absent inputs become numbers, and outputs not asked for are not stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "tidy", keep)
        return passes.specialise(kernel, passed, outputs)


def results(text: str, seed: int, mode: str, only: Pass | None) -> dict[str, Any]:
    """The outputs of one call, with no pass but `only`; or, if it is None, as always."""
    with pytest.MonkeyPatch.context() as patch:
        if only is not None:
            patch.setattr(check, "tidy", only)
            patch.setattr(calls, "specialise", lambda *a: only(defaults_only(*a)))
        program = coda.loads(text).program
        call = random_call(coda_kernel(text), seed, mode)
        return dict(program.interpret(**call.copy(), tile=call.tile, outputs=call.outputs).items())


def coda_kernel(text: str) -> Kernel:
    return coda.loads(text).program.ir


def same_bits(x: Any, y: Any) -> bool:
    """Equal shapes, types and bits; any NaN equals any NaN."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind in "ib":
        return bool((x == y).all())
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
    nan = np.isnan(a) & np.isnan(b)
    return bool((nan | ((a == b) & (np.signbit(a) == np.signbit(b)))).all())


PASSES: dict[str, Pass | None] = {
    "all": None,
    "fold_constants": passes.fold_constants,
    "merge_common": passes.merge_common,
    "drop_dead": passes.drop_dead,
}


@given(programs(), st.integers(0, 2**32 - 1))
@settings(max_examples=settings.default.max_examples // 4)
def test_results_are_the_same_to_the_bit(text: str, seed: int) -> None:
    for mode in ("normal", "special"):
        plain = results(text, seed, mode, keep)
        for name, only in PASSES.items():
            got = results(text, seed, mode, only)
            assert set(got) == set(plain)
            for output, array in got.items():
                assert same_bits(array, plain[output]), (name, output)


@given(programs())
@settings(max_examples=settings.default.max_examples // 2)
def test_tidying_twice_changes_nothing(text: str) -> None:
    kernel = coda_kernel(text)
    assert passes.tidy(kernel) == kernel


def values(body: str, signature: str = "x: f32[M, N], s: f32", stores: str = "y: f32[M, N]") -> list[str]:
    """The operations that remain of a map."""
    text = f"map f<M, N>({signature}) -> ({stores}) {{ {body} }}"
    return [v.op for v in coda.loads(text).f.ir.values]


@pytest.mark.parametrize(
    ("body", "remains"),
    [
        ("y <- x * 1.0", ["load"]),
        ("y <- 1 * x", ["load"]),
        ("y <- x / 1.0", ["load"]),
        ("y <- x - 0.0", ["load"]),
        ("y <- x + -0.0", ["load"]),
        ("y <- -0.0 + x", ["load"]),
        ("y <- x + 0.0", ["load", "const", "add"]),  # −0 + 0 is +0
        ("y <- x - -0.0", ["load", "const", "sub"]),
        ("y <- 0.0 - x", ["const", "load", "sub"]),
        ("y <- x * 0.0", ["load", "const", "mul"]),  # NaN·0, ∞·0
        ("y <- x - x", ["load", "sub"]),
        ("y <- x / x", ["load", "div"]),
        ("y <- max(x, -inf)", ["load", "const", "max"]),
        ("y <- (x + 1.0) + 2.0", ["load", "const", "add", "const", "add"]),  # nothing is reassociated
        ("y <- x * (2.0 * 3.0 + 1.0)", ["load", "const", "mul"]),
        ("y <- x * sqrt(4.0)", ["load", "const", "mul"]),
        ("y <- select(1.0 < 2.0, x, x / 0.0)", ["load"]),
        ("u = x * s  v = x * s  y <- u + v", ["load", "load", "mul", "add"]),
        ("u = x * s  v = s * x  y <- u + v", ["load", "load", "mul", "mul", "add"]),
        ("u = exp(x)  y <- x", ["load"]),
        ("y <- select(x > 0.0, 0.0, -0.0)", ["load", "const", "gt", "const", "select"]),
    ],
)
def test_what_remains(body: str, remains: list[str]) -> None:
    assert values(body) == remains


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("0.1 + 0.2", float(np.float32(0.1) + np.float32(0.2))),
        ("1e30 * 1e30", math.inf),
        ("inf - inf", math.nan),
        ("0.0 / 0.0", math.nan),
        ("1.0 / -0.0", -math.inf),
        ("-0.0 * 1.0", -0.0),
        ("max(0.0, -0.0)", 0.0),
        ("min(0.0, -0.0)", -0.0),
        ("1e-45 / 2.0", 0.0),
        ("round<bf16>(1.00390625)", 1.0),
        ("round<f8e4m3>(1000.0)", 448.0),
        ("fma(16777217.0, 1.0, 1.0)", 16777216.0),
        ("exp(0.0)", 1.0),
        ("f32(idiv(7, -2) + 7 % -2)", -5.0),
        ("f32(idiv(7, 0) + 7 % 0)", 0.0),
        ("f32(true)", 1.0),
        ("select(nan == nan, 1.0, 2.0)", 2.0),
        ("select(not (1.0 > 2.0) and true, 3.0, 2.0)", 3.0),
    ],
)
def test_constants_are_computed_as_the_interpreter_would(expression: str, number: float) -> None:
    text = f"map f<M, N>(x: f32[M, N]) -> (y: f32[M, N], z: f32[M, N]) {{ y <- x  z <- {expression} }}"
    f = coda.loads(text).f
    stored = next(s for s in f.ir.stores if s.target == "z")
    assert f.ir.values[stored.value].op == "const"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "tidy", keep)
        patch.setattr(calls, "specialise", defaults_only)
        unfolded = coda.loads(text).f(x=np.zeros((1, 1), np.float32)).z
    for z in (f(x=np.zeros((1, 1), np.float32)).z, unfolded):
        assert same_bits(z, np.full((1, 1), number, np.float32))


def test_equal_numbers_that_differ_are_kept_apart() -> None:
    text = """map f<M, N>(x: f32[M, N]) -> (a: f32[M, N], b: f32[M, N], c: i64[M, N], d: f32[M, N]) {
        a <- x * 0.0  b <- x * -0.0  c <- 1  d <- x + 1.0
    }"""
    out = coda.loads(text).f(x=np.ones((1, 1), np.float32))
    assert not np.signbit(out.a)
    assert np.signbit(out.b)
    assert out.c == 1
    assert out.d == 2


SPECIALISED = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], bias: f32[N] = 0, c: bf16[M, N] = 0, g: f32 = 1) -> (
    y: f32[M, N], z: f32[M, N]?, e: f32[M, tiles(N)]?,
) {
    x = (a @ b.T) * g + bias
    w = exp(x) + c
    y <- x  z <- w  e <- tile_sum(w, over=N)
}"""


def specialised(passed: str, outputs: str) -> Kernel:
    names = frozenset(["a", "b", *passed.split()])
    return passes.specialise(coda.loads(SPECIALISED).k.ir, names, frozenset(outputs.split()))


def test_what_is_not_passed_is_not_read_and_what_is_not_asked_for_is_not_computed() -> None:
    kernel = specialised("", "y")
    assert [v.op for v in kernel.values] == ["acc", "const", "add"]  # g is 1 and bias is +0, which −0 + 0 needs
    assert [p.name for p in kernel.params] == ["a", "b"]
    assert [o.name for o in kernel.outputs] == ["y"]
    assert {v.attr for v in specialised("bias g", "y").values if v.op == "load"} == {"bias", "g"}
    assert any(v.op == "exp" for v in specialised("", "z").values)


@pytest.mark.parametrize("passed", ["", "bias", "c", "g", "bias c g"])
def test_a_specialised_kernel_is_typed_as_the_checker_types(passed: str) -> None:
    """Extents of a result are those of its operands: an absent input keeps its own."""
    whole = coda.loads(SPECIALISED).k.ir
    for outputs in ("y", "z", "e", "y z e"):
        kernel = specialised(passed, outputs)
        known = {(v.op, v.type.dims) for v in whole.values} | {("const", p.dims) for p in whole.params}
        for v in kernel.values:
            assert v.op == "const" or (v.op, v.type.dims) in known
        assert all(a < i for i, v in enumerate(kernel.values) for a in v.args)


def test_dead_values_do_not_need_their_inputs() -> None:
    kernel = coda.loads(random_program(3)).program.ir
    nothing = replace(kernel, stores=())
    assert passes.drop_dead(nothing).values == ()


def test_integers_wrap_when_folded_and_when_computed() -> None:
    big: Number = 2**63 - 1
    text = f"map f<M, N>(i: i64[M, N]) -> (a: i64[M, N], b: i64[M, N]) {{ a <- i + 1  b <- idiv({big}, 1) + 1 % 2 }}"
    out = coda.loads(text).f(i=np.full((1, 1), big))
    assert out.a == out.b == -(2**63)
