"""Values that hold fewer elements than their type has: absent inputs, scalar indices, head-wise columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang.ir.ops import OPS

X = np.arange(24, dtype=np.float32).reshape(4, 6)
INDEX = np.array([0, 2, 1, 1])


def run(text: str, tile: tuple[int, int] = (3, 4), **arguments: Any) -> coda.Result:
    (program,) = coda.loads(text).values()
    return program.interpret(tile=tile, **arguments)


@pytest.mark.parametrize("over", ["M", "N"])
def test_a_reduction_of_a_value_without_rows_of_its_own(over: str) -> None:
    shape = "[tiles(M), N]" if over == "M" else "[M, tiles(N)]"
    text = f"""map f<M, N>(x: f32[M, N]) -> (y: f32[M, N], o: f32{shape}) {{
        y <- x  o <- tile_sum(onehot(1), over={over})
    }}"""
    hot = np.zeros((4, 6), np.float32)
    hot[:, 1] = 1
    parts = [hot[:3].sum(0), hot[3:].sum(0)] if over == "M" else [hot[:, :4].sum(1), hot[:, 4:].sum(1)]
    np.testing.assert_array_equal(run(text, x=X).o, np.stack(parts, 0 if over == "M" else 1))


def test_pick_from_a_value_without_rows_of_its_own() -> None:
    text = "map f<M, N>(x: f32[M, N], i: i64[M]) -> (y: f32[M, N], o: f32[M]) { y <- x  o <- pick(onehot(1), i) }"
    np.testing.assert_array_equal(run(text, x=X, i=INDEX).o, [0, 0, 1, 1])


@pytest.mark.parametrize("value", ["c", "c + 1.0", "x * 0.0 + c"])
@pytest.mark.parametrize("reduction", ["tile_sum", "tile_max", "tile_absmax", "tile_logsumexp"])
def test_an_absent_input_is_its_number_everywhere(value: str, reduction: str) -> None:
    text = f"""map f<M, N>(x: f32[M, N], c: f32[M, N] = 2) -> (y: f32[M, N], o: f32[M, tiles(N)]) {{
        y <- x  o <- {reduction}({value}, over=N)
    }}"""
    given = run(text, x=X, c=np.full_like(X, 2))
    np.testing.assert_array_equal(run(text, x=X).o, given.o)


def test_pairs_of_an_absent_input() -> None:
    text = """map f<M, N>(x: f32[M, N], c: f32[N] = 2) -> (y: f32[M, N/2]) {
        u, v = pairs(x)  p, q = pairs(c)  y <- u * p - v * q
    }"""
    np.testing.assert_array_equal(run(text, x=X).y, run(text, x=X, c=np.full(6, 2, np.float32)).y)


def test_a_row_of_an_absent_table_is_its_number() -> None:
    text = "map f<M, N, P>(x: f32[M, N], t: f32[P] = 2, i: i64[M]) -> (y: f32[M, N]) { y <- x * t[i] }"
    np.testing.assert_array_equal(run(text, x=X, i=INDEX).y, X * 2)


def test_absent_inputs_of_a_reduce() -> None:
    text = """reduce f<M, P>(x: f32[M, P], w: f32[P] = 3, v: f32[M, P] = 1) -> (a: f32[], b: f32[M], c: f32[P]) {
        a <- sum(w, over=P)  b <- sum(v + 1.0, over=P) + max(x, over=P)  c <- w
    }"""
    out = run(text, x=X)
    assert out.a == 18
    np.testing.assert_array_equal(out.b, 12 + X.max(1))
    np.testing.assert_array_equal(out.c, np.full(6, 3))


def test_an_absent_input_asks_for_no_length_that_nothing_needs() -> None:
    text = "map f<M, N = H * D>(x: f32[M, N], w: f32[D] = 2) -> (y: f32[M, N]) { y <- x * w }"
    np.testing.assert_array_equal(run(text, x=X).y, X * 2)
    halved = text.replace("y <- x * w", "u, v = pairs(x)  p, q = pairs(w)  y <- unpairs(u * p, v * q)")
    with pytest.raises(coda.ArgumentError, match=r"no argument's shape fixes axis D.*pass it by name"):
        run(halved, x=X)
    np.testing.assert_array_equal(run(halved, x=X, D=2).y, X * 2)


@pytest.mark.parametrize("rows", [4, 0])
def test_unpairs_repeats_a_head_wise_operand(rows: int) -> None:
    text = "map f<M, N = H * D>(x: f32[M, N], w: f32[D/2]) -> (y: f32[M, N]) { u, v = pairs(x)  y <- unpairs(u, w) }"
    x = np.arange(rows * 12, dtype=np.float32).reshape(rows, 12)
    y = run(text, x=x, w=np.array([-1.0, -2.0], np.float32)).y
    np.testing.assert_array_equal(y[:, 0::2], x[:, 0::2])
    np.testing.assert_array_equal(y[:, 1::2], np.tile([-1.0, -2.0], (rows, 3)))


def test_fma_whose_product_is_narrower_than_its_addend() -> None:
    text = "map f<M, N>(x: f32[M, N], c: f32[M]) -> (y: f32[M, N]) { y <- fma(c, 2.0, x) + fma(0.5, 0.5, x) }"
    c = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(run(text, x=X, c=c).y, (2 * c[:, None] + X) + (X + np.float32(0.25)))


def test_a_head_wise_value_spreads_in_a_store() -> None:
    text = """map f<M, N = H * D>(x: f32[M, N], h: f32[M, H], d: f32[D], inout s: f32[M, N]) -> (
        y: f32[M, N], z: f32[M, N],
    ) {
        y <- h  z <- d  s +<- h
    }"""
    h, d = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([5, 6, 7], np.float32)
    out = run(text, x=X, h=h, d=d, s=X.copy())
    np.testing.assert_array_equal(out.y, np.repeat(h, 3, axis=1))
    np.testing.assert_array_equal(out.z, np.tile(d, (4, 2)))
    np.testing.assert_array_equal(out.s, X + np.repeat(h, 3, axis=1))


@pytest.mark.parametrize("name", [o.name for o in OPS.values() if o.meaning and o.callable])
def test_numbers_without_axes_go_through_every_operation(name: str) -> None:
    row = OPS[name]
    arguments = {"F": "s", "N": "s", "A": "s", "I": "i", "B": "s > 0.0"}
    call = f"{name}({', '.join(arguments[k] for k in row.params)})"
    value = f"f32({call})" if row.result in "I" else call
    text = f"""reduce f<M>(x: f32[M], k: i64[]) -> (y: f32[], z: bf16[], w: f32[]) {{
        s = sum(x, over=M)  i = k + 1  v = {value}
        y <- v  z <- v  w <- round<bf16>(v)
    }}"""
    out = run(text, x=np.full(3, 0.25, np.float32), k=np.asarray(2))
    vector = text.replace("(y: f32[], z: bf16[], w: f32[])", "(y: f32[M], z: bf16[M], w: f32[M])")
    vector = vector.replace("s = sum(x, over=M)", "s = 3.0 * x")
    each = run(vector, x=np.full(3, 0.25, np.float32), k=np.asarray(2))
    assert {n: x.shape for n, x in out.items()} == {"y": (), "z": (), "w": ()}
    for n in ("y", "z", "w"):
        assert out[n] == each[n][0]
