"""`compare` takes every legal program, holds the interpreter to be right, and nothing that is a few bounds away."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from comparing import Array, Compared

import coda_lang as coda

F8 = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
TILE = "map m<M, N{axes}>(x: f32[M, N]{inputs}) -> (y: {out}) {{ {body} }}"


def tile(body: str, inputs: str = "", out: str = "f32[M, N]", axes: str = "") -> str:
    return TILE.format(body=body, inputs=inputs and f", {inputs}", out=out, axes=axes and f", {axes}")


def ramp(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(dtype)


def thirds(*shape: int) -> Array:
    return (ramp(*shape) / 3).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


X, T = thirds(2, 4), thirds(3, 4)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fma": (tile("y <- fma(x, x, -0.1)"), {"x": X}),
    "round": (tile("y <- round<bf16>(x * x) + round<f8e4m3>(x * 100.0)"), {"x": X}),
    "round of what overflows": (tile("y <- 1.0 / round<f16>(x * 1e5)"), {"x": X}),
    "i64": (tile("y <- i * i * i + row()", "i: i64[M, N]", "i64[M, N]"),
            {"x": X, "i": np.full((2, 4), 3_000_000_019)}),
    "i32 wraps": (tile("y <- i * i", "i: i32[M, N]", "i32[M, N]"), {"x": X, "i": np.full((2, 4), 70_001, np.int32)}),
    "integer by a comparison": (tile("y <- select(x > 1.0, i, -3)", "i: i32[M]", "i32[M, N]"),
                                {"x": X, "i": ints(4, 5)}),
    "bool": (tile("y <- x > 1.0 and not x == 2.0 or p", "p: bool[N]", "bool[M, N]"),
             {"x": X, "p": np.array([True, False, False, False])}),
    "f32 of a large integer": (tile("y <- x * f32(i)", "i: i64[M]"),
                               {"x": X, "i": np.array([2**53 + 1, -(2**40) - 3])}),
    "idiv and mod": (tile("y <- x * f32(idiv(i, 2) % 3)", "i: i32[M, N]"),
                     {"x": X, "i": np.arange(-4, 4, dtype=np.int32).reshape(2, 4)}),
    "absent pairs": (tile("u, v = pairs(w)  y <- x * unpairs(u, v)", "w: f32[M, N] = 1"), {"x": X}),
    "absent beside half": (tile("u, v = pairs(w * 2.0)  p, q = pairs(x)  y <- unpairs(p * v, q)", "w: f32[N] = 0.1"),
                           {"x": X}),
    "absent table": (tile("y <- x + t[i, ...]", "t: f32[P, N] = 2, i: i32[M]", axes="P"),
                     {"x": X, "i": ints(1, 7), "P": 3}),
    "absent integer": (tile("y <- x + f32(i)", "i: i32[M] = 3"), {"x": X}),
    "absent bool": (tile("y <- select(p, x, 1.0)", "p: bool[M] = true"), {"x": X}),
    "absent sum": (tile("y <- tile_sum(c, over=N)", "c: f32[M, N] = 2", "f32[M, tiles(N)]"), {"x": X}),
    "gather past the end": (tile("y <- x + t[i, ...]", "t: f32[P, N], i: i32[M]", axes="P"),
                            {"x": X, "t": T, "i": ints(5, 0)}),
    "gather before the start": (tile("y <- x + t[i, ...]", "t: f32[P, N], i: i32[M]", axes="P"),
                                {"x": X, "t": T, "i": ints(-1, 0)}),
    "gather from an empty table": (tile("y <- x + t[i]", "t: f32[P], i: i32[M]", axes="P"),
                                   {"x": X, "t": T[0, :0], "i": ints(0, 0)}),
    "gather by a scalar": (tile("y <- x + t[i, ...]", "t: f32[P, N], i: i32", axes="P"), {"x": X, "t": T, "i": 1}),
    "gather by a number": (tile("y <- x + t[2]", "t: f32[P]", axes="P"), {"x": X, "t": T[:, 0]}),
    "pick": (tile("y <- pick(x * x, i, ignore=1)", "i: i32[M]", "f32[M]"), {"x": thirds(4, 4), "i": ints(3, 1, 9, -1)}),
    "pick by a scalar": (tile("y <- pick(x * x, i)", "i: i32", "f32[M]"), {"x": X, "i": 1}),
    "pick by a number": (tile("y <- pick(x * x, 2)", out="f32[M]"), {"x": X}),
    "pick of nothing": (tile("y <- pick(x, i)", "i: i32[M]", "f32[M]"), {"x": X[:, :0], "i": ints(0, 0)}),
    "onehot": (tile("y <- x * onehot(i)", "i: i32[M]"), {"x": X, "i": ints(3, 9)}),
    "onehot by a scalar": (tile("y <- x * onehot(i)", "i: i32"), {"x": X, "i": 1}),
    "onehot by a number": (tile("y <- onehot(1)"), {"x": X}),
    "no rows": (tile("y <- tile_max(x, over=N)", out="f32[M, tiles(N)]"), {"x": X[:0]}),
    "no columns": (tile("y <- tile_max(x, over=N)", out="f32[M, tiles(N)]"), {"x": X[:, :0]}),
    "sum of nothing": ("reduce m<M, N>(x: f32[M, N]) -> (y: f32[M]) { y <- sum(x, over=N) }", {"x": X[:, :0]}),
    "largest of nothing": ("reduce m<M, N>(x: f32[M, N]) -> (y: f32[M]) { y <- max(x, over=N) }", {"x": X[:, :0]}),
    "smallest of nothing": ("reduce m<M, N>(x: f32[M, N]) -> (y: f32[M]) { y <- min(x, over=N) }", {"x": X[:, :0]}),
    "absent reduced": ("reduce m<M, N>(x: f32[M, N], c: f32[M, N] = 2) -> (y: f32[M])"
                       " { y <- sum(c, over=N) + sum(x, over=N) }", {"x": X}),
    "axes turned": ("reduce m<M, N>(x: f32[M, N], w: f32[N]) -> (y: f32[N, M]) { y <- w * x }", {"x": X, "w": X[0]}),
    "partials": ("reduce m<M, N>(x: f32[M, tiles(N)], n: f32) -> (y: f32[M]) { y <- sum(x, over=tiles(N)) / n }",
                 {"x": X, "n": 0.3}),
    "one number": ("reduce m<M>(x: f32[M]) -> (y: f32[]) { y <- sum(x, over=M) / M }", {"x": X[0]}),
    "heads": ("map m<M, N = H * D>(x: f32[M, N], w: f32[D], h: f32[M, H]) -> (y: f32[M, H], z: f32[M, N])"
              " { y <- segment_sum(x * w, over=D)  z <- w * h }",
              {"x": thirds(2, 6), "w": thirds(3), "h": thirds(2, 2)}),
    "welford": ("map m<M, N>(x: f32[M, N]) -> (c: f32[M, tiles(N)], a: f32[M, tiles(N)], s: f32[M, tiles(N)])"
                " { n, mean, m2 = tile_welford(x, over=N)  c <- n  a <- mean  s <- m2 }", {"x": thirds(5, 11)}),
    "squares that underflow": ("map m<M, N>(x: f32[M, N]) -> (s: f32[M, tiles(N)])"
                               " { _, _, m2 = tile_welford(x, over=N)  s <- m2 }", {"x": thirds(5, 11) * 1e-23}),
    "columns": ("map m<M, N>(x: f32[M, N]) -> (y: f32[tiles(M), N], z: f32[tiles(M), N])"
                " { y <- tile_sum(exp(-x), over=M)  z <- tile_absmax(x * -0.1, over=M) }", {"x": thirds(5, 7)}),
    "logsumexp": (tile("y <- tile_logsumexp(x, over=N)", out="f32[M, tiles(N)]"), {"x": thirds(5, 7)}),
    "vectors": ("map m<M, N>(x: f32[M, N], v: f32[M], w: f32[N]) -> (a: bf16[M, N], b: f16[M], c: f32[N])"
                " { a <- v  b <- v * v  c <- w / 3.0 }", {"x": X, "v": X[:, 0], "w": X[0]}),
    "numbers": ("map m<M, N>(x: f32[M, N]) -> (a: f32[M, N], b: f16[M], c: bool[N], d: i32[M, N])"
                " { a <- 0.1  b <- 2.0  c <- true  d <- 7 }", {"x": X}),
    "lengths": (tile("y <- x / N + f32(M * 3)"), {"x": X}),
    "added to": ("map m<M, N>(x: f32[M, N], inout d: f16[M, N]) -> () { d +<- x * x }",
                 {"x": X, "d": ramp(2, 4, dtype=np.float16)}),
    "host scalars": (tile("y <- select(b > 2, x * s, x)", "s: f32, b: i64"), {"x": X, "s": 0.1, "b": 3}),
    "device scalars": (tile("y <- select(p, x * s, f32(b))", "s: bf16[], b: i32[], p: bool[]"),
                       {"x": X, "s": np.array(0.1, ml_dtypes.bfloat16), "b": ints(3)[0], "p": np.array(True)}),
    "overflow and its quotient": (tile("y <- 1.0 / (x * 1e30 * 1e30) + x"), {"x": X}),
    "NaN": (tile("y <- max(x, 0.0) + select(x != x, 1.0, x)"), {"x": np.array([[np.nan, 1, 2, np.inf]], np.float32)}),
    "infinities": (tile("y <- x * inf + exp(-x)"), {"x": X}),
    "f8 stores": ("map m<M, N>(x: f32[M, N]) -> (y: f8e4m3[M, N], z: f8e5m2[M, N]) { y <- x * 300.0  z <- 1.0 / x }",
                  {"x": np.array([[0.1, 0.0, np.inf, np.nan]], np.float32)}),
}  # fmt: skip
for _name, _type in (*F8.items(), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
    CASES[f"T = {_name}"] = (
        "kernel m<M, N, K; T: f8e4m3 | f8e5m2 | f16 | bf16>(a: T[M, K], b: T[N, K]) -> (y: T[M, N], z: f32[M, N])"
        " { h = a @ b.T  y <- h * 0.01  z <- h }",
        {"a": ramp(2, 4, dtype=_type), "b": ramp(3, 4, dtype=_type)},
    )
for _name, _type in (("f32", np.float32), ("i32", np.int32), ("i64", np.int64)):
    _choices = "i32 | i64" if _name[0] == "i" else "f32 | bf16"
    CASES[f"T = {_name} of a map"] = (
        f"map m<M, N; T: {_choices}>(x: T[M, N]) -> (y: T[M, N]) {{ y <- x * 3 }}",
        {"x": ramp(2, 4, dtype=_type)},
    )


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_program(case: str, gpu: bool) -> None:
    """The interpreter is inside the bounds, every element has one, and none of them holds an element that is moved."""
    text, arguments = CASES[case]
    call = Compared.call(coda.loads(text).m, arguments, tile=(3, 4))
    assert call.wrong(call.results, gpu) == {}
    assert all(c.all() for c in call.claims(gpu).values())
    moved = {n: x for n, x in call.moved(gpu).items() if x.size}
    assert call.wrong(moved, gpu) == {n: x.size for n, x in moved.items()}


def wrong(body: str, results: dict[str, Array], inputs: str = "", out: str = "f32[M, N]", **arguments: Any) -> int:
    call = Compared.call(coda.loads(tile(body, inputs, out)).m, arguments, (128, 256))
    return sum(call.wrong(results, gpu=True).values())


def test_a_nan_is_no_number() -> None:
    assert wrong("y <- x * 0.5", {"y": np.array([[np.nan, 0.5]], np.float32)}, x=ramp(1, 2)) == 2
    assert wrong("y <- x * nan", {"y": ramp(1, 2)}, x=ramp(1, 2)) == 2


def test_an_infinity_is_no_large_number() -> None:
    most = np.finfo(np.float32).max
    assert wrong("y <- x * x", {"y": np.array([[most, most]], np.float32)}, x=np.float32([[1e20, 1e30]])) == 2
    # What the store could round to an infinity may be one; what lies well below may not.
    inf = np.array([[np.inf, np.inf, -np.inf]], np.float16)
    assert wrong("y <- x", {"y": inf}, out="f16[M, N]", x=np.float32([[65520, 60000, 65520]])) == 2


def test_integers_beyond_f64() -> None:
    """2⁵³ and 2⁵³ + 1 are one number in f64."""
    x, i = ramp(1, 2), np.array([[2**53, 2**53]])
    assert wrong("y <- i", {"y": i + np.array([0, 1])}, "i: i64[M, N]", "i64[M, N]", x=x, i=i) == 1


@pytest.mark.parametrize(
    ("body", "dtype", "values"),
    [
        ("y <- select(x * w > 1.0, i, 2)", "i32", ints(2, 5)),
        ("y <- select(x * w > 1.0, 5.0, 2.0)", "f32", np.float32([2, 5])),
        ("y <- f32(select(x * w > 1.0, i, 2)) * 0.5", "f32", np.float32([1, 2.5])),
        ("y <- x * w > 1.0", "bool", np.array([False, True])),
        ("y <- not (x * w > 1.0) or x * w < 0.5", "bool", np.array([True, False])),
    ],
)
def test_doubt_goes_with_what_it_decides(body: str, dtype: str, values: Array) -> None:
    """x·w > 1 may go either way where x·w rounds to 1; what is made of it may have either value, and only there."""
    x, w = np.float32([[3.0, 1.0]]), np.float32([[1 / 3, 4.0]])
    inputs, out = "w: f32[M, N], i: i32", f"{dtype}[M, N]"
    for first in (0, 1):
        for second in (0, 1):
            got = {"y": values[[[first, second]]]}
            assert wrong(body, got, inputs, out, x=x, w=w, i=5) == (0 if second else 1)


def test_an_index_in_doubt() -> None:
    """A row of the table that may be another says nothing."""
    text = ("map m<M, N, P>(x: f32[M, N], v: f32[M], t: f32[P], i: i32) -> (y: f32[M, N], z: f32[M], h: f32[M, N])"
            " { j = select(v * 0.33333334 > 1.0, i, 0)  y <- t[j] + x  z <- pick(x, j)  h <- onehot(j) }")  # fmt: skip
    arguments = {"x": ramp(2, 2), "v": np.float32([3.0, 6.0]), "t": np.float32([1.0, 10.0]), "i": 1}
    for got in Compared.call(coda.loads(text).m, arguments, (128, 256)).claims(True).values():
        np.testing.assert_array_equal(got.reshape(2, -1)[:, 0], [False, True])


def test_one_activation_for_another() -> None:
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    other = coda.loads(tile("y <- gelu_tanh(x)")).m.interpret(x=x)
    assert wrong("y <- gelu(x)", dict(other.items()), x=x) > 1500
