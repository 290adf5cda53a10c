"""Tile reductions and reduces: one partial for each tile of any shape, ragged tiles, NaN, infinities, empty axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import coda_lang as coda

Array = np.ndarray[Any, Any]
TILES = [(1, 2), (2, 2), (3, 4), (7, 10), (128, 256), (5, 1000)]
SHAPES = [(1, 1), (1, 7), (5, 4), (13, 17), (9, 32), (0, 5), (5, 0)]


def data(rows: int, cols: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(rows * 100 + cols).standard_normal((rows, cols)) * scale).astype(np.float32)


def partials(x: Array, width: int, axis: int, reduce: Callable[[list[float]], float]) -> Array:
    """`reduce` of each tile's elements along `axis`, one at a time."""
    y = x if axis == 1 else x.T
    starts = range(0, y.shape[1], width)
    out = np.array([[reduce([float(v) for v in row[s : s + width]]) for s in starts] for row in y], np.float64)
    out = out.reshape(y.shape[0], len(starts))
    return out if axis == 1 else out.T


def lse(values: list[float]) -> float:
    if any(math.isnan(v) for v in values):
        return math.nan
    finite = [v for v in values if v > -math.inf]
    if math.inf in finite or not finite:
        return math.inf if finite else -math.inf
    return float(mpmath.log(mpmath.fsum(mpmath.exp(v) for v in finite)))


def highest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "tile_sum": math.fsum,
    "tile_max": highest,
    "tile_absmax": lambda values: highest([abs(v) for v in values]),
    "tile_logsumexp": lse,
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_partials_along_columns(name: str, shape: tuple[int, int], tile: tuple[int, int]) -> None:
    text = f"map f<M, N>(x: f32[M, N]) -> (o: f32[M, tiles(N)]) {{ o <- {name}(x, over=N) }}"
    x = data(*shape)
    got = coda.loads(text).f.interpret(x=x, tile=tile).o
    want = partials(x, tile[1], 1, REDUCTIONS[name])
    assert got.shape == want.shape == (shape[0], -(-shape[1] // tile[1]))
    np.testing.assert_allclose(got, want, rtol=2**-22, atol=2**-22 if name != "tile_absmax" else 0)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["tile_sum", "tile_max", "tile_absmax"])
def test_partials_along_rows(name: str, shape: tuple[int, int], tile: tuple[int, int]) -> None:
    text = f"map f<M, N>(x: f32[M, N]) -> (o: f32[tiles(M), N]) {{ o <- {name}(x, over=M) }}"
    x = data(*shape)
    got = coda.loads(text).f.interpret(x=x, tile=tile).o
    want = partials(x, tile[0], 0, REDUCTIONS[name])
    assert got.shape == want.shape == (-(-shape[0] // tile[0]), shape[1])
    np.testing.assert_allclose(got, want, rtol=2**-22, atol=2**-22)


@pytest.mark.parametrize("tile", TILES)
def test_tiles_are_the_accumulators_for_values_of_any_width(tile: tuple[int, int]) -> None:
    text = """map f<M, N>(x: f32[M, N]) -> (h: f32[M, tiles(N)], d: f32[M, tiles(N)], e: f32[tiles(M), N/2]) {
        u, v = pairs(x)
        h <- tile_sum(u, over=N)
        d <- tile_max(unpairs(x, -x), over=N)
        e <- tile_sum(v, over=M)
    }"""
    x = np.arange(9 * 26, dtype=np.float32).reshape(9, 26)
    out = coda.loads(text).f.interpret(x=x, tile=tile)
    np.testing.assert_array_equal(out.h, partials(x[:, 0::2], tile[1] // 2, 1, math.fsum))
    double = np.stack([x, -x], -1).reshape(9, 52)
    np.testing.assert_array_equal(out.d, partials(double, 2 * tile[1], 1, max))
    np.testing.assert_array_equal(out.e, partials(x[:, 1::2], tile[0], 0, math.fsum))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_welford(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    """Also of data far from 0, where Σ x² − n·mean² has no digit left."""
    text = """map f<M, N>(x: f32[M, N]) -> (c: f32[M, tiles(N)], m: f32[M, tiles(N)], s: f32[M, tiles(N)]) {
        count, mean, squares = tile_welford(x, over=N)
        c <- count  m <- mean  s <- squares
    }"""
    x = data(*shape) + np.float32(4096)
    out = coda.loads(text).f.interpret(x=x, tile=tile)

    def squares(values: list[float]) -> float:
        mean = math.fsum(values) / len(values)
        return math.fsum((v - mean) ** 2 for v in values)

    np.testing.assert_array_equal(out.c, partials(x, tile[1], 1, lambda v: float(len(v))))
    np.testing.assert_allclose(out.m, partials(x, tile[1], 1, lambda v: math.fsum(v) / len(v)), rtol=2**-24)
    np.testing.assert_allclose(out.s, partials(x, tile[1], 1, squares), rtol=2**-23, atol=2.0**-80)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_segment_sum(heads: int) -> None:
    text = "map f<M, N = H * D>(x: f32[M, N], w: f32[M, H]) -> (s: f32[M, H]) { s <- segment_sum(x * w, over=D) }"
    x = np.arange(3 * heads * 4, dtype=np.float32).reshape(3, heads * 4)
    w = np.arange(3 * heads, dtype=np.float32).reshape(3, heads)
    got = coda.loads(text).f(x=x, w=w).s
    np.testing.assert_array_equal(got, x.reshape(3, heads, 4).sum(-1) * w)


LSE = "map f<M, N>(x: f32[M, N]) -> (o: f32[M, tiles(N)]) { o <- tile_logsumexp(x, over=N) }"
COMBINE = """reduce r<M, N>(lse: f32[M, tiles(N)]) -> (lse: f32[M]) {
    top = max(lse, over=tiles(N))
    base = select(abs(top) == inf, 0.0, top)
    lse <- base + log(sum(exp(lse - base), over=tiles(N)))
}"""


def combined(x: Array, tile: tuple[int, int] = (128, 128)) -> Array:
    out: Array = coda.loads(COMBINE).r(lse=coda.loads(LSE).f.interpret(x=x, tile=tile).o, N=x.shape[1]).lse
    return out


def test_logsumexp_of_a_ragged_tile_of_low_logits() -> None:
    got = combined(np.full((2, 1160), -50, np.float32))
    np.testing.assert_allclose(got, -50 + math.log(1160), rtol=1e-6)


def test_logsumexp_of_tiles_that_are_all_minus_infinity() -> None:
    x = np.zeros((3, 160), np.float32)
    x[0, :128] = -np.inf
    x[1] = -np.inf
    x[2, 3] = np.inf
    got = combined(x)
    np.testing.assert_allclose(got, [math.log(32), -np.inf, np.inf], rtol=1e-6)


@pytest.mark.parametrize("name", [*REDUCTIONS, "tile_welford"])
def test_nan_stays_in_its_row_and_tile(name: str) -> None:
    results = "_, m, _" if name == "tile_welford" else "m"
    text = f"""map f<M, N>(x: f32[M, N]) -> (o: f32[M, tiles(N)], y: f32[M, N]) {{
        {results} = {name}(x, over=N)  o <- m  y <- max(x, 0.0) + clamp(x, -1.0, 1.0)
    }}"""
    x = data(6, 12)
    x[4, 7] = np.nan
    out = coda.loads(text).f.interpret(x=x, tile=(2, 4))
    np.testing.assert_array_equal(np.argwhere(np.isnan(out.o)), [[4, 1]])
    np.testing.assert_array_equal(np.argwhere(np.isnan(out.y)), [[4, 7]])


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_zeros_of_both_signs(name: str, order: tuple[float, float]) -> None:
    x = np.array([order, (-0.0, -0.0), (0.0, 0.0)], np.float32)
    text = f"reduce r<M, P>(x: f32[M, P]) -> (y: f32[M]) {{ y <- {name}(x, over=P) }}"
    np.testing.assert_array_equal(np.signbit(coda.loads(text).r(x=x).y), [name == "min", True, False])
    if name == "max":
        text = "map f<M, N>(x: f32[M, N]) -> (y: f32[M, tiles(N)]) { y <- tile_max(x, over=N) }"
        np.testing.assert_array_equal(np.signbit(coda.loads(text).f(x=x).y[:, 0]), [False, True, False])


def test_reductions_of_nothing() -> None:
    text = """reduce r<M, P>(x: f32[M, P]) -> (s: f32[M], t: f32[M], b: f32[M]) {
        s <- sum(x, over=P)  t <- max(x, over=P)  b <- min(x, over=P)
    }"""
    out = coda.loads(text).r(x=np.zeros((3, 0), np.float32))
    np.testing.assert_array_equal(out.s, [0, 0, 0])
    np.testing.assert_array_equal(out.t, [-np.inf] * 3)
    np.testing.assert_array_equal(out.b, [np.inf] * 3)


def test_a_reduce_spreads_by_name_not_by_position() -> None:
    text = """reduce r<M, P>(x: f32[M, P], y: f32[P, M], v: f32[P]) -> (a: f32[P, M], b: f32[M, P], s: f32[]) {
        a <- x + y * v  b <- x + y * v  s <- sum(max(x - v, over=M), over=P)
    }"""
    rng = np.random.default_rng(0)
    x, y, v = (rng.integers(-9, 9, n).astype(np.float32) for n in ((3, 3), (3, 3), (3,)))
    out = coda.loads(text).r(x=x, y=y, v=v)
    np.testing.assert_array_equal(out.b, x + (y * v[:, None]).T)
    np.testing.assert_array_equal(out.a, out.b.T)
    assert out.s == (x - v).max(0).sum()


PICK = """map f<M, N>(x: f32[M, N], i: i32[M], ignore: i64 = -100) -> (t: f32[M], u: f32[M], h: f32[M, N]) {
    t <- pick(x, i)  u <- pick(x, i, ignore=ignore)  h <- onehot(i)
}"""


def test_pick_and_onehot() -> None:
    x = data(6, 1000)
    i = np.array([0, 999, 1000, -1, -100, 500], np.int32)
    out = coda.loads(PICK).f(x=x, i=i)
    want = np.array([x[0, 0], x[1, 999], np.nan, np.nan, np.nan, x[5, 500]])
    np.testing.assert_array_equal(out.t, want)
    want[4] = 0
    np.testing.assert_array_equal(out.u, want)
    np.testing.assert_array_equal(out.h, (np.arange(1000) == i[:, None]).astype(np.float32))
    outside = coda.loads(PICK).f(x=x[:, :3], i=np.full(6, 255, np.int32), ignore=255)
    np.testing.assert_array_equal(outside.u, np.zeros(6))


@pytest.mark.parametrize("length", [0, 1, 5])
def test_rows_of_a_table(length: int) -> None:
    text = """map f<M, N, P>(x: f32[M, N], t: bf16[P, N], v: f32[P], i: i64[M]) -> (
        a: f32[M, N], b: f32[M], c: f32[M, N],
    ) {
        a <- t[i, ...]  b <- v[i]  c <- x * t[row(), ...]
    }"""
    table, v = data(length, 4).astype("bfloat16"), data(1, length)[0]
    i = np.array([0, 4, -1, 5, 2**40, 1, -(2**62)])
    out = coda.loads(text).f(x=np.ones((7, 4), np.float32), t=table, v=v, i=i)
    for m, n in enumerate(i):
        inside = 0 <= n < length
        np.testing.assert_array_equal(out.a[m], table[n].astype(np.float32) if inside else np.full(4, np.nan))
        np.testing.assert_array_equal(out.b[m], v[n] if inside else np.nan)
        np.testing.assert_array_equal(out.c[m], table[m].astype(np.float32) if m < length else np.full(4, np.nan))
