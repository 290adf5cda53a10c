"""FLOPs and bytes, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import coda_lang as coda
from coda_lang.call import Caller
from coda_lang.cost import H200, Cost, cost, roofline
from coda_lang.data import draw

PROGRAMS = Path(__file__).parents[2] / "programs"


def _cost(text: str, optional: tuple[str, ...] = (), outputs: list[str] | None = None, **sizes: int) -> Cost:
    (program,) = coda.loads(text).values()
    arguments = draw(program.ir, sizes=sizes, optional=optional).arguments
    call = Caller(program.ir).call(arguments, outputs, None)
    return cost(call.binding, (64, 128))


KERNEL = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], c: f16[M, N] = 0, s: f32 = 1.0) -> (
    z: bf16[M, N], y: f32[M, N/2]?, p: f32[M, tiles(N)]?) {
    h = a @ b.T * s + c
    g, u = pairs(h)
    z <- h
    y <- g * u
    p <- tile_sum(h, over=N)
}
"""


def test_what_is_not_asked_for_costs_nothing() -> None:
    plain = _cost(KERNEL, M=10, N=300, K=7)
    assert plain.flops == 2 * 10 * 300 * 7
    assert plain.reads == {"a": 140, "b": 4200}
    assert plain.writes == {"z": 6000}
    whole = _cost(KERNEL, ("c", "s"), ["z", "y", "p"], M=10, N=300, K=7)
    assert whole.reads == {"a": 140, "b": 4200, "c": 6000}
    assert whole.writes == {"z": 6000, "y": 6000, "p": 120}
    assert whole.operations == 3000 + 3000 + 1500 + 3000  # · s, + c, g · u, and the sum
    assert whole.bytes == 10340 + 12120


def test_what_is_updated_is_read_and_written() -> None:
    text = "map m<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () {\n    d +<- 2.0 * x\n}\n"
    found = _cost(text, M=3, N=4)
    assert found.flops == 0
    assert found.reads == {"x": 48, "d": 48}
    assert found.writes == {"d": 48}


def test_of_a_table_only_picked_rows_are_read() -> None:
    text = (
        "map m<M, N, P>(x: f32[M, N], t: f32[P, N], i: i32[M] in 0..P) -> (y: f32[M, N]) {\n    y <- x + t[i, ...]\n}\n"
    )
    assert _cost(text, M=3, N=4, P=100).reads == {"x": 48, "t": 48, "i": 12}
    assert _cost(text, M=30, N=4, P=2).reads["t"] == 32


def test_a_reduce() -> None:
    text = "reduce r<M, N>(x: f32[M, tiles(N)], e: f32) -> (y: f32[M]) {\n    y <- sum(x, over=tiles(N)) / N + e\n}\n"
    found = _cost(text, M=5, N=600)
    assert found.reads == {"x": 5 * 3 * 4}
    assert found.operations >= 5 * 3 + 5 + 5  # the sum, and a division and an addition for each row


def test_the_roofline() -> None:
    product, traffic = roofline(Cost(989 * 10**9, 0, {"a": 48 * 10**8}, {"z": 48 * 10**8}))
    assert product == pytest.approx(1e-3)
    assert traffic == pytest.approx(2e-3)
    assert roofline(Cost(989 * 10**9, 0, {}, {}), operand_bits=8)[0] == pytest.approx(0.5e-3)
    assert H200.multiprocessors == 132


def test_every_program_moves_at_least_its_results() -> None:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for program in coda.load(path).values():
            if program.kind == "block":
                continue
            call = Caller(program.ir).call(draw(program.ir).arguments, None, None)
            found = cost(call.binding, (128, 256))
            assert set(found.writes) == {s.target for s in call.kernel.stores}
            assert set(found.reads) <= {p.name for p in call.kernel.params}
            assert (found.flops > 0) == (program.kind == "kernel")
