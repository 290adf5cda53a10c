"""Arguments that look like arrays and numbers and are none, and memory that is shared where it must not be."""

from __future__ import annotations

import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import coda_lang as coda
from coda_lang import ArgumentError

TWICE = coda.loads("map f<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- 2.0 * x }").f
GROW = coda.loads("map f<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () { d +<- x }").f
TABLE = coda.loads("map f<M, N>(t: f32[M, N], i: i32[M]) -> (y: f32[M, N]) { y <- t[i, ...] }").f
PRODUCT = coda.loads("kernel f<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N]) { y <- 2.0 * (a @ b.T) }").f
NUMBERS = coda.loads("""
map f<M, N>(x: f32[M, N], g: f32[] = 1, h: i32[] = 1, q: f8e4m3[] = 1, b: bool[] = true, s: f32 = 1) -> (y: f32[M, N]) {
    y <- x * g * f32(h) * q * f32(b) * s
}""").f


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(4).expand(2, 4), lambda: torch.zeros(5).as_strided((2, 4), (1, 1))]
)
def test_what_is_written_does_not_overlap_itself(make: Any) -> None:
    with pytest.raises(ArgumentError, match="`y` has elements that share memory"):
        TWICE(x=ones(2, 4), out={"y": make()})
    with pytest.raises(ArgumentError, match="`d` has elements that share memory"):
        GROW(x=ones(2, 4), d=make())
    assert TWICE(x=torch.ones(1, 4).expand(2, 4)).y.tolist() == [[2.0] * 4] * 2  # what is read may


@pytest.mark.parametrize("order", ["C", "F"])
def test_layouts_that_do_not_overlap_are_written(order: Any) -> None:
    for y in (np.empty((3, 4), np.float32, order), np.empty((6, 8), np.float32, order)[::-2, ::2], ones(1, 4)[:, ::-1]):
        x = np.arange(y.size, dtype=np.float32).reshape(y.shape)
        TWICE(x=x, out={"y": y})
        np.testing.assert_array_equal(y, 2 * x)


def test_a_table_is_not_written_while_it_is_read() -> None:
    t = ones(3, 4)
    with pytest.raises(ArgumentError, match="shares memory with input `t`"):
        TABLE(t=t, i=np.array([2, 1, 0], np.int32), out={"y": t})
    x = ones(3, 4)
    TWICE(x=x, out={"y": x})  # a tile may be
    assert (x == 2).all()


@pytest.mark.parametrize("of", [lambda a: a.T, lambda a: a[::-1], lambda a: a])
def test_a_given_accumulator_may_lie_where_the_output_goes(of: Any) -> None:
    acc = np.random.default_rng(0).standard_normal((600, 600)).astype(np.float32)
    want, y = 2 * acc, of(acc)
    PRODUCT.interpret(acc=acc, out={"y": y})
    np.testing.assert_array_equal(y, want)


def test_a_lazy_view_of_torch_is_read_and_not_written() -> None:
    lazy = torch.full((2, 4), 1 + 3j).conj().imag
    assert lazy.is_neg()
    assert (TWICE(x=lazy).y == -6).all()
    with pytest.raises(ArgumentError, match="read-only"):
        GROW(x=ones(2, 4), d=lazy)
    with pytest.raises(ArgumentError, match="read-only"):
        TWICE(x=ones(2, 4), out={"y": lazy})


def test_tensors_without_memory() -> None:
    for x in (torch.empty(2, 4, device="meta"), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
        with pytest.raises(ArgumentError):
            TWICE(x=x)
    with pytest.raises(ArgumentError):
        torch.func.vmap(lambda x: TWICE(x=x).y)(torch.ones(3, 2, 4))


def test_a_gradient_is_not_dropped_in_silence() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"`x` requires a gradient.*x\.detach\(\)"):
        TWICE(x=x)
    with torch.no_grad():
        assert (TWICE(x=x).y == 2).all()
    assert (TWICE(x=x.detach()).y == 2).all()


def test_masked_arrays() -> None:
    masked = np.ma.masked_array(ones(2, 4), mask=ones(2, 4) > 0)
    for call in (lambda: TWICE(x=masked), lambda: TWICE(x=ones(2, 4), out={"y": masked})):
        with pytest.raises(ArgumentError, match=r"a masked array has elements that are none: pass x\.filled"):
            call()
    with pytest.raises(ArgumentError, match="`s` is a scalar f32"):
        NUMBERS(x=ones(1, 2), s=np.ma.masked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("h", ml_dtypes.bfloat16(1.5)), ("h", 1.5), ("h", True), ("g", np.complex64(1 + 2j)), ("g", np.str_("1.5")),
        ("g", np.datetime64("2020-01-01")), ("g", True), ("b", float("nan")), ("b", 1000), ("h", 2**40),
    ],
)  # fmt: skip
def test_numbers_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` is "):
        NUMBERS(x=ones(1, 2), **{name: value})


def test_numbers_that_fit() -> None:
    fits = {"g": ml_dtypes.bfloat16(1.5), "h": np.int8(3), "q": 1000.0, "b": np.True_, "s": 10**400}
    assert NUMBERS(x=ones(1, 2), **{n: v for n, v in fits.items() if n != "s"}).y[0, 0] == 1.5 * 3 * 448
    assert NUMBERS(x=ones(1, 2), s=fits["s"]).y[0, 0] == np.inf
    assert NUMBERS(x=ones(1, 2), s=-(10**400)).y[0, 0] == -np.inf


@pytest.mark.parametrize("length", [np.array([2]), 10**30, "4", -1, True, 2.0, None])
def test_lengths_that_are_none(length: Any) -> None:
    total = coda.loads("reduce r<M, N>(s: f32[M, tiles(N)]) -> (t: f32[M]) { t <- sum(s, over=tiles(N)) / N }").r
    with pytest.raises(ArgumentError, match="axis `N` is a length"):
        total(s=ones(2, 2), N=length)


def test_odd_ways_to_ask() -> None:
    with pytest.raises(ArgumentError, match="`outputs` is a list"):
        TWICE(x=ones(1, 2), outputs=np.array("y"))
    with pytest.raises(ArgumentError, match="`acc` has two dimensions"):
        PRODUCT.interpret(acc=[[1], [1, 2]])
    with pytest.raises(OSError, match="null character"):
        coda.load("a\0b")


def test_files_are_checked_in_many_threads() -> None:
    text = "fn g0(x) = x\n" + "".join(f"fn g{i + 1}(x) = g{i}(x) + 1.0\n" for i in range(150))
    text += "map m<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- g150(x) }\n"
    before, failed = sys.getrecursionlimit(), []

    def check() -> None:
        try:
            for _ in range(5):
                coda.loads(text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=check) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert sys.getrecursionlimit() == before
