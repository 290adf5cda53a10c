"""Small programs and shapes that break systems of this kind: names, diamonds, ragged ends, what is stored where."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def whole(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def exact_product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("k", [0, 1, 20, 192, 200])
@pytest.mark.parametrize("n", [1, 8, 72, 264])
@pytest.mark.parametrize("m", [0, 1, 3, 127, 129])
def test_every_element_is_written(m: int, n: int, k: int) -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], s: f32[M], w: f32[N]) -> (
        y: f32[M, N], m: f32[M, tiles(N)], n: f32[tiles(M), N],
    ) { x = (a @ b.T) * s + w  y <- x  m <- tile_max(x, over=N)  n <- tile_max(x, over=M) }"""
    a, b, s, w = whole(m, k, dtype=BF16), whole(n, k, dtype=BF16, seed=1), whole(m), whole(n)
    out = {"y": np.full((m, n), np.nan, np.float32), "m": np.full((m, -(-n // 256)), np.nan, np.float32),
           "n": np.full((-(-m // 128), n), np.nan, np.float32)}  # fmt: skip
    coda.loads(text).k(a=a, b=b, s=s, w=w, out=out)
    x = exact_product(a, b.T) * s[:, None] + w
    np.testing.assert_array_equal(out["y"], x)
    np.testing.assert_array_equal(out["m"], np.stack([x[:, j : j + 256].max(1) for j in range(0, n, 256)], 1))
    for i in range(out["n"].shape[0]):
        np.testing.assert_array_equal(out["n"][i], x[128 * i : 128 * (i + 1)].max(0))


@pytest.mark.parametrize("layout", ["a @ b.T", "a @ b", "a.T @ b", "a.T @ b.T"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_four_layouts_of_the_operands(layout: str, dtype: str) -> None:
    left, right = ("[K, M]" if "a.T" in layout else "[M, K]"), ("[N, K]" if "b.T" in layout else "[K, N]")
    text = f"kernel k<M, N, K>(a: {dtype}{left}, b: {dtype}{right}) -> (y: f32[M, N]) {{ y <- {layout} }}"
    numpy = {"bf16": BF16, "f16": np.float16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[dtype]
    a, b = whole(5, 7, dtype=numpy), whole(7, 4, dtype=numpy)
    given = {"a": a.T if "a.T" in layout else a, "b": b.T if "b.T" in layout else b}
    np.testing.assert_array_equal(coda.loads(text).k(**given).y, exact_product(a, b))


def test_axes_are_matched_by_name_also_if_they_are_equally_long() -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], s: f32[M], w: f32[N]) -> (y: f32[M, N], z: f32[M, N]) {
        x = a @ b.T  y <- x * s  z <- x * w
    }"""
    a, b, s, w = whole(4, 4, dtype=BF16), whole(4, 4, dtype=BF16, seed=1), whole(4), whole(4, seed=2)
    out = coda.loads(text).k(a=a, b=b, s=s, w=w)
    np.testing.assert_array_equal(out.y, exact_product(a, b.T) * s[:, None])
    np.testing.assert_array_equal(out.z, exact_product(a, b.T) * w[None, :])


def test_diamonds_and_outputs_that_share_a_value() -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (
        acc: f32[M, N], z: bf16[M, N], d: f32[M, N], d2: f16[M, N], e: f32[M, N],
    ) {
        acc = a @ b.T
        z = relu(acc)
        d = z + z
        acc <- acc
        z <- z
        d <- d
        d2 <- d
        e <- d * z + (z - d)   // the unrounded z, whatever was stored
    }"""
    a, b = whole(6, 40, dtype=BF16) * BF16(1.5), whole(5, 40, dtype=BF16)
    out = coda.loads(text).k(a=a, b=b)
    acc = exact_product(a, b.T)
    z = np.maximum(acc, 0)
    np.testing.assert_array_equal(out.acc, acc)
    np.testing.assert_array_equal(out.z, z.astype(BF16))
    np.testing.assert_array_equal(out.d, 2 * z)
    np.testing.assert_array_equal(out.d2, 2 * z)
    np.testing.assert_array_equal(out.e, 2 * z * z - z)


def test_an_operand_may_be_the_residual_too() -> None:
    text = "kernel k<M, N>(a: bf16[M, N], b: bf16[N, N]) -> (y: bf16[M, N]) { y <- a @ b + a }"
    a, b = whole(3, 6, dtype=BF16), whole(6, 6, dtype=BF16)
    np.testing.assert_array_equal(coda.loads(text).k(a=a, b=b).y, (exact_product(a, b) + a.astype(float)).astype(BF16))


def test_a_tile_and_a_vector_meet() -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], c: f16[M, N], w: f32[N], h: bf16[M, 2*N]) -> (
        y: f32[M, 2*N],
    ) { g, u = pairs(h)  x = (a @ b.T + c) * w  y <- unpairs(x * g, x - u) }"""
    a, b, c = whole(3, 8, dtype=BF16), whole(4, 8, dtype=BF16), whole(3, 4, dtype=np.float16)
    w, h = whole(4), whole(3, 8, dtype=BF16, seed=3)
    x = (exact_product(a, b.T) + c.astype(float)) * w
    y = coda.loads(text).k(a=a, b=b, c=c, w=w, h=h).y
    np.testing.assert_array_equal(y[:, 0::2], x * h[:, 0::2].astype(float))
    np.testing.assert_array_equal(y[:, 1::2], x - h[:, 1::2].astype(float))


def test_arithmetic_is_f32_in_the_order_that_is_written() -> None:
    text = """map f<M, N>(x: f32[M, N], y: f32[M, N]) -> (a: f32[M, N], b: f32[M, N], c: f32[M, N], d: f32[M, N]) {
        a <- (x + y) - x  b <- x + (y - x)  c <- x * y - x * y  d <- fma(x, y, -(x * y))
    }"""
    x, y = (np.random.default_rng(i).standard_normal((8, 8)).astype(np.float32) for i in (0, 1))
    out = coda.loads(text).f(x=x, y=y)
    np.testing.assert_array_equal(out.a, (x + y) - x)
    np.testing.assert_array_equal(out.b, x + (y - x))
    np.testing.assert_array_equal(out.c, 0)  # a contraction would leave the product's error
    np.testing.assert_array_equal(out.d, (x.astype(float) * y - (x * y)).astype(np.float32))


@pytest.mark.parametrize("repeats", [3])
def test_a_call_gives_the_same_bits_again(repeats: int) -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N], s: f32[M, tiles(N)]) {
        x = silu(a @ b.T)  y <- x  s <- tile_sum(x, over=N)
    }"""
    a, b = (np.random.default_rng(i).standard_normal((600, 300)).astype(BF16) for i in (0, 1))
    first = coda.loads(text).k(a=a, b=b)
    for _ in range(repeats):
        again = coda.loads(text).k(a=a, b=b)
        for n in ("y", "s"):
            np.testing.assert_array_equal(first[n], again[n])


def test_progress_counts_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from coda_lang.interp import run

    monkeypatch.setattr(run, "STRIP_ELEMENTS", 40)
    seen: list[tuple[int, int]] = []
    text = "map f<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x }"
    coda.loads(text).f.interpret(x=whole(21, 10), progress=lambda done, rows: seen.append((done, rows)))
    assert seen == [(4, 21), (8, 21), (12, 21), (16, 21), (20, 21), (21, 21)]


def test_results_are_mappings_and_can_be_unpacked() -> None:
    text = "map f<M, N>(x: f32[M, N]) -> (y: f32[M, N], z: f32[M]) { y <- x  z <- 1.0 }"
    out = coda.loads(text).f(x=whole(2, 3))
    y, z = out
    assert y is out.y is out["y"]
    assert z.shape == (2,)
    assert dict(out.items()).keys() == {"y", "z"}
    assert "y" in out
    assert "x" not in out
    assert len(out) == 2
    assert repr(out) == "Result(y: f32[2, 3], z: f32[2])"
