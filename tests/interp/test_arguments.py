"""Wrong calls: one ArgumentError that names the argument, what was expected and what came, and nothing computed."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import coda_lang as coda
from coda_lang import ArgumentError

F32, BF16 = np.float32, ml_dtypes.bfloat16
KERNEL = """kernel k<M, N, K; T: bf16 | f16, I: i32 | i64>(
    a: T[M, K], b: T[N, K], w: f32[N], t: I[M] in 0..N, p: bool[M], inout d: f32[M, N],
    c: T[M, N] = 0, h: f32[M, N/2] = 0, g: f32 = 1, j: i64 = 0, s: f32[] = 1,
) -> (y: T[M, N], u: f32[M, N/2]?, m: f32[M, tiles(N)]) {
    x = (a @ b.T) * w * g * s + c + f32(j) + f32(t) + f32(p)
    e, o = pairs(x)
    y <- x  u <- e * o + h  m <- tile_sum(x, over=N)  d +<- x
}"""
HEADS = "map f<M, N = H * D>(x: f32[M, N], c: f32[M, H] = 0, e: f32[D] = 0) -> (y: f32[M, N]) { y <- x * c + e }"
SUM = "reduce r<M, N>(x: f32[M, tiles(N)]) -> (y: f32[M]) { y <- sum(x, over=tiles(N)) / N }"
UPDATE = "map f<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () { d +<- x }"
ABSENT = object()


def right() -> dict[str, Any]:
    return {
        "a": np.ones((3, 5), BF16),
        "b": np.ones((4, 5), BF16),
        "w": np.ones(4, F32),
        "t": np.zeros(3, np.int32),
        "p": np.ones(3, np.bool_),
        "d": np.zeros((3, 4), F32),
    }


def read_only(*shape: int, dtype: Any = F32) -> Any:
    x = np.zeros(shape, dtype)
    x.flags.writeable = False
    return x


ODD = {"b": np.ones((5, 5), BF16), "w": np.ones(5, F32), "d": np.zeros((3, 5), F32), "outputs": ["u"]}
CALLS: list[tuple[dict[str, Any], str]] = [
    # missing, unknown
    ({"a": ABSENT}, "k: missing argument `a: T[M, K]`"),
    ({"a": ABSENT, "w": ABSENT}, "k: missing arguments `a: T[M, K]`, `w: f32[N]`"),
    ({"ww": np.ones(4, F32)}, "k: no argument `ww`: did you mean `w`?"),
    ({"rstd": 1}, "k: no argument `rstd`: its inputs are a, b, w, t, p, d, c, h, g, j, s"),
    # element types
    ({"a": np.ones((3, 5), F32)}, "k: `a` must be bf16 or f16, got f32: pass `a.astype(ml_dtypes.bfloat16)`"),
    ({"a": torch.ones(3, 5)}, "k: `a` must be bf16 or f16, got f32: pass `a.to(torch.bfloat16)`"),
    ({"b": np.ones((4, 5), np.float16)}, "k: `b` must be bf16 like `a`, got f16"),
    ({"w": np.ones(4)}, "k: `w` must be f32, got float64: pass `w.astype(numpy.float32)`"),
    ({"w": np.ones(4, np.int32)}, "k: `w` must be f32, got i32"),
    ({"t": np.zeros(3)}, "k: `t` must be i32 or i64, got float64"),
    ({"t": np.zeros(3, np.uint8)}, "k: `t` must be i32 or i64, got uint8"),
    ({"p": np.zeros(3, np.int8)}, "k: `p` must be bool, got int8"),
    ({"a": np.array([["x"]])}, "k: `a` must be bf16 or f16, got <U1"),
    ({"a": torch.ones(3, 5, dtype=torch.float64)}, "k: `a`: no element type of the language is torch.float64"),
    ({"s": np.ones((), np.float64)}, "k: `s` must be f32, got float64"),
    # shapes
    ({"a": np.ones(3, BF16)}, "k: `a` is [M, K] and must have 2 dimensions, got 1 ((3,))"),
    ({"w": np.ones((4, 1), F32)}, "k: `w` is [N] and must have 1 dimension, got 2 ((4, 1))"),
    ({"s": np.ones(1, F32)}, "k: `s` is [] and must have 0 dimensions, got 1 ((1,))"),
    ({"w": np.ones(5, F32)}, "k: dimension 0 of `w` (shape (5,)) is N and must be 4, got 5: N is 4 by `b`"),
    ({"a": np.ones((3, 6), BF16)}, "k: dimension 1 of `b` (shape (4, 5)) is K and must be 6, got 5: K is 6 by `a`"),
    ({"d": np.ones((2, 4), F32)}, "k: dimension 0 of `d` (shape (2, 4)) is M and must be 3, got 2: M is 3 by `a`"),
    ({"h": np.ones((3, 3), F32)}, "k: dimension 1 of `h` (shape (3, 3)) is N/2 and must be 2, got 3: N is 4 by `b`"),
    ({"b": np.ones((5, 4), BF16)}, "k: dimension 1 of `b` (shape (5, 4)) is K and must be 5, got 4: K is 5 by `a`; "
     "`b` looks transposed"),
    ({"d": np.ones((4, 3), F32)}, "k: dimension 0 of `d` (shape (4, 3)) is M and must be 3, got 4: M is 3 by `a`; "
     "`d` looks transposed"),
    (ODD, "k: N must be even, got 5 (output `u` has extent N/2); the nearest legal values are 4 and 6"),
    ({"M": 4}, "k: dimension 0 of `a` (shape (3, 5)) is M and must be 4, got 3: M is 4 by the call"),
    *(({"M": m}, f"k: axis `M` is a length, got {m!r}") for m in (-1, 1.5, True, "3")),
    # scalars
    ({"g": "x"}, "k: `g` is a scalar f32, got 'x'"),
    ({"g": True}, "k: `g` is a scalar f32, got True"),
    ({"g": np.ones(2)}, "k: `g` is a scalar f32, got an array float64[2]"),
    ({"j": 1.5}, "k: `j` is an i64 integer, got 1.5"),
    ({"j": 2**70}, f"k: `j` is an i64 integer, got {2**70}"),
    # no arrays, or not here
    *(({"a": x}, f"k: `a`: expected an array (NumPy, CuPy, torch or DLPack), got {type(x).__name__}")
      for x in ("abc", 3, object(), {})),
    ({"a": [[1, 2]]}, "k: `a` must be an array, got a list"),
    ({"w": None}, "k: `w`: expected an array (NumPy, CuPy, torch or DLPack), got NoneType"),
    ({"a": torch.ones(3, 5).to_sparse()}, "k: `a`: expected a dense CPU or CUDA tensor, got a sparse one"),
    ({"a": torch.ones(3, 5, device="meta")}, "k: `a`: expected a dense CPU or CUDA tensor, got one on meta"),
    # outputs
    ({"outputs": "y"}, "k: `outputs` is a list of output names, got 'y'"),
    ({"outputs": 3}, "k: `outputs` is a list of output names, got 3"),
    ({"outputs": ["yy"]}, "k: no output `yy`: did you mean `y`?"),
    ({"outputs": [3]}, "k: no output `3`: its outputs are y, u, m"),
    ({"out": []}, "k: `out` is a dict from output names to arrays, got list"),
    ({"out": {"zz": 1}}, "k: `out` has no output `zz`: the outputs of this call are y, m"),
    ({"out": {"u": np.zeros((3, 2), F32)}}, "k: `out` has no output `u`: the outputs of this call are y, m"),
    ({"out": {"y": np.zeros((3, 4), F32)}}, "k: out `y` must be bf16[3, 4], got f32[3, 4]"),
    ({"out": {"y": np.zeros((3, 5), BF16)}}, "k: out `y` must be bf16[3, 4], got bf16[3, 5]"),
    ({"out": {"m": np.zeros((3, 2), F32)}}, "k: out `m` must be f32[3, 1], got f32[3, 2]"),
    ({"out": {"y": [1]}}, "k: out `y`: expected an array (NumPy, CuPy, torch or DLPack), got list"),
    ({"out": {"y": read_only(3, 4, dtype=BF16)}}, "k: out `y` is read-only"),
    ({"d": read_only(3, 4)}, "k: `d` is updated in place and is read-only"),
    ({"d": 1.0}, "k: `d`: expected an array (NumPy, CuPy, torch or DLPack), got float"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), CALLS)
def test_wrong_calls(change: dict[str, Any], message: str) -> None:
    given = {n: x for n, x in (right() | change).items() if x is not ABSENT}
    k = coda.loads(KERNEL).k
    for call in (k, k.interpret):
        with pytest.raises(ArgumentError, match="^" + re.escape(message)) as caught:
            call(**given)
        assert ("looks transposed" in str(caught.value)) == ("looks transposed" in message)
    untouched = right()["d"]
    if "d" not in change:
        np.testing.assert_array_equal(given["d"], untouched)


def test_the_call_that_they_are_variations_of() -> None:
    k = coda.loads(KERNEL).k
    assert list(k(**right()).keys()) == ["d", "y", "m"]
    assert list(k(**right(), g=None, s=None, c=None, outputs=[]).keys()) == ["d"]
    assert list(k(**right(), outputs=["m", "m"]).keys()) == ["d", "m"]
    k(**right(), M=3, g=np.float64(2), j=np.int8(3), s=np.float16(2))


def test_positional_arguments() -> None:
    k = coda.loads(KERNEL).k
    for call in (k, k.interpret):
        with pytest.raises(ArgumentError, match=re.escape("k: arguments are passed by name: k(a=…, b=…, w=…, t=…")):
            call(right()["a"], right()["b"])


@pytest.mark.parametrize("tile", [(0, 2), (1, 3), (4, 0), (-1, 2)])
def test_tiles_that_cannot_be(tile: Any) -> None:
    with pytest.raises(ArgumentError, match="a tile has at least one row and an even number of columns, got"):
        coda.loads(KERNEL).k.interpret(**right(), tile=tile)


@pytest.mark.parametrize("tile", [(1,), "ab", 3, (1.5, 2), None, (128, 256, 1)])
def test_what_is_no_tile(tile: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`tile` is \(rows, columns\), got"):
        coda.loads(KERNEL).k.interpret(**right(), tile=tile)


@pytest.mark.parametrize(
    ("acc", "message"),
    [
        (np.zeros((3, 4)), "k: `acc`: no element type of the language is"),
        (np.zeros((3, 4), BF16), "k: `acc` is f32[3, 4], got an array bfloat16[3, 4]"),
        (np.zeros(3, F32), "k: `acc` has two dimensions, got an array float32[3]"),
        ([1], "k: `acc` has two dimensions, got list"),
        ("x", "k: `acc` has two dimensions, got 'x'"),
        (np.zeros((3, 5), F32), "k: dimension 0 of `b` (shape (4, 5)) is N and must be 5, got 4: N is 5 by the call"),
    ],
)
def test_accumulators_that_do_not_fit(acc: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(message)):
        coda.loads(KERNEL).k.interpret(**right(), acc=acc)


X = np.ones((2, 12), F32)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (HEADS, {"c": np.ones((2, 5), F32)}, "f: N must be a multiple of H = 5, got 12 (N = H * D)"),
        (HEADS, {"c": np.ones((2, 0), F32)}, "f: N must be a multiple of H = 0, got 12 (N = H * D)"),
        (HEADS, {"c": np.ones((2, 3), F32), "e": np.ones(5, F32)}, "f: N = H * D does not hold: 12 is not 3 * 5"),
        (HEADS, {"H": 5}, "f: N must be a multiple of H = 5, got 12 (N = H * D)"),
        (HEADS, {"acc": X}, "f: a map has no accumulator, so `acc` cannot replace it"),
        (SUM, {}, "r: no argument's shape fixes axis N: pass it by name, `N=…`"),
        (SUM, {"n": 3}, "r: no argument `n`: its inputs are x"),
        (UPDATE, {"d": X.copy(), "outputs": "d"}, "f: `outputs` is a list of output names, got 'd'"),
        (UPDATE, {"d": X.copy(), "out": {"d": X}}, "f: `out` has no output `d`: the outputs of this call are none"),
        (UPDATE, {"d": X.copy(), "outputs": ["d"]}, "f: no output `d`: its outputs are none"),
    ],
)
def test_wrong_calls_of_other_programs(text: str, given: dict[str, Any], message: str) -> None:
    (program,) = coda.loads(text).values()
    with pytest.raises(ArgumentError, match="^" + re.escape(message)):
        program.interpret(x=X, **given)


def test_names_that_a_module_lacks() -> None:
    mod = coda.loads(KERNEL)
    with pytest.raises(AttributeError, match="has no kernel `kk`: did you mean `k`"):
        _ = mod.kk
    with pytest.raises(KeyError):
        mod["kk"]
    with pytest.raises(TypeError, match="loads takes a str"):
        coda.loads(b"")  # type: ignore[arg-type]
