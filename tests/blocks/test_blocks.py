"""What blocks mean: calls in order, partials between them, pieces, inout inputs, inner blocks, options left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coda_lang as coda

STEPS = """
map double<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- 2.0 * x }
map halves<M, N>(x: f32[M, N]) -> (y: f32[M, N/2]) {
    a, b = pairs(x)
    y <- a + b
}
map scaled<M, N; T: bf16 | f32>(x: T[M, N], r: f32[M] = 1, alpha: f32 = 1, n: i32 = 1) -> (
    y: T[M, N], s: f32[M, tiles(N)], z: T[M, N]?
) {
    v = x * r * alpha * f32(n)
    y <- v
    s <- tile_sum(v, over=N)
    z <- x
}
map grow<M, N>(x: f32[M, N], inout sum: f32[M, N]) -> () { sum +<- x }
kernel weights<M, N, K>(a: bf16[M, N], b: bf16[M, K], inout w: f32[N, K]) -> () { w +<- a.T @ b }
reduce total<M, N>(s: f32[M, tiles(N)], eps: f32 = 0) -> (t: f32[M]) { t <- sum(s, over=tiles(N)) / N + eps }
reduce all<M>(t: f32[M]) -> (u: f32[]) { u <- sum(t, over=M) }
"""


def block(text: str) -> Any:
    return coda.loads(STEPS + text).b


def data(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers: every sum of them is exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def test_calls_in_order() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N], r: f32[M], alpha: f32 = 2) -> (y: f32[M, N], t: f32[M], h: f32[M, N/2]) {
        first, s = scaled(x, r, alpha=0.5 * alpha, n=3)
        mean = total(s, eps=1.0)
        second, _ = scaled(x=first, r=mean)
        y <- second
        t <- mean
        h <- halves(double(first))
    }""")
    x, r = data(5, 6), data(5)
    for alpha in (2.0, 4.0):
        out = b(x=x, r=r) if alpha == 2.0 else b(x=x, r=r, alpha=alpha)
        first = x * r[:, None] * (alpha / 2) * 3
        mean = (first.sum(1) / np.float32(6) + 1).astype(np.float32)
        np.testing.assert_array_equal(out.t, mean)
        np.testing.assert_array_equal(out.y, first * mean[:, None])
        np.testing.assert_array_equal(out.h, 2 * (first[:, ::2] + first[:, 1::2]))


@pytest.mark.parametrize("tile", [(128, 256), (2, 4), (1, 2), (3, 6)])
def test_partials_have_whatever_number_the_tile_gives(tile: tuple[int, int]) -> None:
    b = block("""
    block b<M, N>(x: f32[M, N]) -> (t: f32[M]) {
        _, s = scaled(x)
        t <- total(s)
    }""")
    x = data(7, 10)
    np.testing.assert_array_equal(b.interpret(x=x, tile=tile).t, x.sum(1) / np.float32(10))


def test_lengths_of_this_block_go_by_value() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N], k: i32) -> (y: f32[M, N]) {
        y <- scaled(x, n=2 * N - (M + k) * 3, alpha=1.0 / N).y
    }""")
    x = data(2, 8)
    np.testing.assert_array_equal(b(x=x, k=1).y, x * np.float32(1 / 8) * np.float32(16 - 9))


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 9])
def test_pieces(rows: int) -> None:
    """Rows are cut, what has none is whole, and what is added to goes on from piece to piece."""
    b = block("""
    block b<M, N, K>(x: f32[M, N], a: bf16[M, N], c: bf16[M, K], inout w: f32[N, K]) -> (y: f32[M, N], t: f32[M]) {
        y1, t1 = piece(x, a, c, w=w)
        y <- double(y1)
        t <- t1
    }
    block piece<M by 4, N, K>(x: f32[M, N], a: bf16[M, N], c: bf16[M, K], inout w: f32[N, K]) -> (
        y: f32[M, N], t: f32[M]
    ) {
        y1, s = scaled(double(x), n=M)
        weights(a=a, b=c, w=w)
        y <- y1
        t <- total(s)
    }""")
    import ml_dtypes

    x, a, c = data(rows, 6), data(rows, 6, seed=1).astype(ml_dtypes.bfloat16), data(rows, 2).astype(ml_dtypes.bfloat16)
    w = data(6, 2, seed=3)
    want = w + a.astype(np.float32).T @ c.astype(np.float32)
    out = b(x=x, a=a, c=c, w=w)
    lengths = np.repeat(
        [4] * (rows // 4) + ([rows % 4] if rows % 4 else []), [4] * (rows // 4) + ([rows % 4] if rows % 4 else [])
    )
    each = 2 * x * lengths[:, None].astype(np.float32)
    np.testing.assert_array_equal(out.y, 2 * each)
    np.testing.assert_array_equal(out.t, (each.sum(1) / np.float32(6)).astype(np.float32))
    assert out.w is w
    np.testing.assert_array_equal(w, want)


def test_what_is_not_asked_for_is_not_computed() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N], r: f32[M] = 1) -> (y: f32[M, N], z: f32[M, N]?, t: f32[M]?, u: f32[]?) {
        y1, s, z1 = scaled(x, r)
        y <- y1
        z <- z1
        mean = total(s)
        t <- mean
        u <- all(mean)
    }""")
    x = data(3, 4)
    assert list(b(x=x).keys()) == ["y"]
    assert b.memory(x=x).launches == 1
    assert b.memory(x=x, outputs=["t"]).launches == 2
    assert b.memory(x=x, outputs=["u", "z"]).launches == 3
    out = b(x=x, outputs=["u", "z"])
    np.testing.assert_array_equal(out.z, x)
    assert out.u == (x.sum(1) / np.float32(4)).sum()
    assert b(x=x, r=data(3), outputs=["y"]).y.shape == (3, 4)
    names = [o.name for o in b.caller.specialised(frozenset({"x"}), frozenset({"y"})).steps[0].callee.outputs]
    assert names == ["y", "s", "z"]


def test_types_follow_the_call() -> None:
    b = block("""
    block b<M, N; T: bf16 | f32>(x: T[M, N]) -> (y: T[M, N]) { y <- scaled(x, alpha=3.0).y }""")
    import ml_dtypes

    for dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)):
        x = data(2, 4).astype(dtype)
        assert b(x=x).y.dtype == dtype
    with pytest.raises(coda.ArgumentError, match="must be bf16 or f32, got f16"):
        b(x=data(2, 4).astype(np.float16))


def test_out_and_in_place() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N], inout s: f32[M, N]) -> (y: f32[M, N]) {
        h = double(x)
        grow(h, sum=s)
        grow(x, sum=s)
        y <- double(h)
    }""")
    x, s, y = data(4, 6), data(4, 6, seed=1), np.full((4, 6), np.nan, np.float32)
    want = s + 3 * x
    out = b(x=x, s=s, out={"y": y})
    assert out.y is y
    assert out.s is s
    np.testing.assert_array_equal(y, 4 * x)
    np.testing.assert_array_equal(s, want)
    with pytest.raises(coda.ArgumentError, match="shares memory with input `x`"):
        b(x=x, s=s, out={"y": x})
    with pytest.raises(coda.ArgumentError, match="`y` and `s` share memory"):
        b(x=x, s=s, out={"y": s})
    with pytest.raises(coda.ArgumentError, match="out `y` must be"):
        b(x=x, s=s, out={"y": y[:2]})


def test_calls_that_do_not_fit() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N]) -> (h: f32[M, N/2]) { h <- halves(x) }""")
    with pytest.raises(coda.ArgumentError, match="N must be even, got 5"):
        b(x=data(2, 5))
    with pytest.raises(coda.ArgumentError, match="missing argument `x"):
        b()
    with pytest.raises(coda.ArgumentError, match="passed by name"):
        b(data(2, 4))
    with pytest.raises(coda.ArgumentError, match="a plan needs CUDA arrays"):
        b.plan(x=data(2, 4))
    with pytest.raises(coda.ArgumentError, match="no accumulator"):
        b.caller.call({"x": data(2, 4)}, None, None, acc=data(2, 4))


def test_an_inner_call_that_does_not_fit_says_where() -> None:
    b = block("""
    map heads<M, N = H * D>(x: f32[M, N], w: f32[D]) -> (y: f32[M, N], s: f32[M, H]?) {
        v = x * w
        y <- v
        s <- segment_sum(v, over=D)
    }
    block b<M, N, C>(x: f32[M, N], w: f32[C]) -> (y: f32[M, N]) { y <- heads(x, w) }""")
    x, w = data(2, 16), data(8)
    np.testing.assert_array_equal(b(x=x, w=w).y, x * np.tile(w, 2))
    with pytest.raises(coda.ArgumentError, match=r"b \(<string>:\d+:\d+\): heads: N must be a multiple of D = 8"):
        b(x=data(2, 12), w=w)


def test_split_axes_are_found_again() -> None:
    b = block("""
    map heads<M, N = H * D>(x: f32[M, N], w: f32[D]) -> (y: f32[M, N], s: f32[M, H]) {
        v = x * w
        y <- v
        s <- segment_sum(v, over=D)
    }
    block b<M, Q = G * C>(x: f32[M, Q], w: f32[C]) -> (s: f32[M, G]) { s <- heads(x, w).s }""")
    x, w = data(3, 16), data(8)
    np.testing.assert_array_equal(b(x=x, w=w).s, (x.reshape(3, 2, 8) * w).sum(2))


def test_torch_tensors_in_torch_tensors_out() -> None:
    import torch

    b = block("""
    block b<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- double(double(x)) }""")
    x = torch.from_numpy(data(2, 4))
    out = b(x=x).y
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, 4 * x)
    assert isinstance(b.interpret(x=x).y, np.ndarray)


def test_progress_counts_launches() -> None:
    b = block("""
    block b<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- double(double(x)) }""")
    seen: list[tuple[int, int]] = []
    b.interpret(x=data(2, 4), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_what_a_module_offers() -> None:
    module = coda.loads(STEPS + "block b<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- double(double(x)) }")
    assert list(module)[-1] == "b"
    assert module.b.kind == "block"
    assert [k.name for k in module.b.kernels] == ["double"]
    assert repr(module.b).startswith("<block b")
    assert {n: s.shape for n, s in module.b.out_shapes(x=data(2, 4)).items()} == {"y": (2, 4)}


# -- numbers, pieces and calls that fail -------------------------------------------------------------------------------

NUMBERS = """
map sized<M, N, D>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x * f32(D) }
map scale<M, N>(x: f32[M, N], s: f32) -> (y: f32[M, N]) { y <- x * s }
map count<M, N>(x: f32[M, N], n: i64) -> (y: f32[M, N]) { y <- x * f32(n) }
map per_row<M, N>(x: f32[M, N], g: f32[N]) -> (g: f32[M, N]) { g <- x * g }
map two<M, N>(x: f32[M, N], inout d: f32[M, N], inout e: f32[M, N]) -> () {
    d +<- x
    e +<- x
}
kernel linear<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (d: bf16[M, N]) { d <- a @ b.T }
"""


def numbers(text: str) -> Any:
    return coda.loads(STEPS + NUMBERS + text)


def test_lengths_of_a_piece_are_whole() -> None:
    b = numbers("block b<M by 4, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- sized(x, D=M/2) }").b
    x = np.ones((6, 2), np.float32)
    np.testing.assert_array_equal(b(x=x).y[:, 0], [2, 2, 2, 2, 1, 1])
    with pytest.raises(coda.ArgumentError, match=r"M/2 is no whole number where M is 1"):
        b(x=np.ones((5, 2), np.float32))


def test_numbers_are_rounded_on_their_way_into_a_block() -> None:
    module = numbers("""
    block c<M, N>(x: f32[M, N], s: f32 = 0.1) -> (y: f32[M, N]) { y <- scale(x, s=(s - 0.1) * 1e9) }
    block b<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- c(x, s=0.1) }
    block i<M, N>(x: f32[M, N], n: i32) -> (y: f32[M, N]) { y <- scale(x, s=n / 1) }
    block o<M, N>(x: f32[M, N], n: i64) -> (y: f32[M, N]) { y <- i(x, n=n) }
    """)
    x = np.ones((1, 2), np.float32)
    alone = module.c(x=x, s=0.1).y
    assert alone[0, 0] == np.float32((float(np.float32(0.1)) - 0.1) * 1e9)
    np.testing.assert_array_equal(module.c(x=x).y, alone)
    np.testing.assert_array_equal(module.b(x=x).y, alone)
    for name in ("i", "o"):
        with pytest.raises(coda.ArgumentError, match="`n` is an i32 integer, got 3000000000"):
            module[name](x=x, n=3000000000)


def test_huge_numbers_are_infinite() -> None:
    product = " * ".join(["n"] * 20)
    b = numbers(f"block b<M, N>(x: f32[M, N], n: i64) -> (y: f32[M, N]) {{ y <- scale(x, s=({product} + 2.0) / 2) }}").b
    assert b(x=np.ones((1, 2), np.float32), n=2**62).y[0, 0] == np.inf
    assert b(x=np.ones((1, 2), np.float32), n=3).y[0, 0] == np.float32((3**20 + 2) / 2)


def test_a_call_that_fails_has_changed_nothing() -> None:
    module = numbers("""
    block b<M, N>(x: f32[M, N], n: i64, inout d: f32[M, N]) -> (y: f32[M, N]) {
        grow(x, sum=d)
        y <- count(x, n=n * n)
    }
    block c<M, N>(x: f32[M, N], inout d: f32[M, N], inout e: f32[M, N]) -> () {
        grow(x, sum=e)
        two(x, d=d, e=e)
    }""")
    x, d = data(2, 4), data(2, 4, seed=1)
    before = d.copy()
    with pytest.raises(coda.ArgumentError, match="`n` is an i64 integer"):
        module.b(x=x, n=2**62, d=d)
    with pytest.raises(coda.ArgumentError, match="share memory"):
        module.c(x=x, d=d, e=d)
    np.testing.assert_array_equal(d, before)


def test_calls_within_calls_of_the_same() -> None:
    import ml_dtypes

    module = numbers("""
    block h<M, N>(x: f32[M, N]) -> (y: f32[M, N/4]) { y <- halves(halves(x)) }
    block d<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- double(added2(double(x), double(double(x)))) }
    block l<M, D>(x: bf16[M, D], w: bf16[D, D]) -> (y: bf16[M, D]) { y <- linear(linear(x, w), w) }
    map added2<M, N>(x: f32[M, N], z: f32[M, N]) -> (y: f32[M, N]) { y <- x + z }
    """)
    x = data(3, 8)
    np.testing.assert_array_equal(module.h(x=x).y, x.reshape(3, 2, 4).sum(2))
    np.testing.assert_array_equal(module.d(x=x).y, 12 * x)
    a, w = data(3, 4).astype(ml_dtypes.bfloat16), np.eye(4).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(module.l(x=a, w=w).y, a)


def test_an_output_may_have_the_name_of_an_input_that_is_not_cut() -> None:
    b = numbers("block b<M by 4, N>(x: f32[M, N], g: f32[N]) -> (g: f32[M, N]) { g <- per_row(x, g) }").b
    x, g = data(6, 8), data(8)
    np.testing.assert_array_equal(b(x=x, g=g).g, x * g)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)])
def test_empty_arrays(shape: tuple[int, int]) -> None:
    b = block("""
    block b<M, N>(x: f32[M, N]) -> (y: f32[M, N], t: f32[M]) {
        y1, s = scaled(double(x))
        y <- double(y1)
        t <- total(s)
    }""")
    out = b(x=np.ones(shape, np.float32))
    assert out.y.shape == shape
    assert out.t.shape == shape[:1]


def test_tiles_of_memory_are_tiles() -> None:
    b = block("block b<M, N>(x: f32[M, N]) -> (t: f32[M]) { t <- total(scaled(x).s) }")
    for tile in ((0, 0), 3):
        with pytest.raises(coda.ArgumentError, match="tile"):
            b.memory(x=data(2, 4), tile=tile)
