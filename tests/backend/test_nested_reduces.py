"""Reductions inside reductions are loops of one thread: what would take a GPU minutes is refused, with the way out."""

from __future__ import annotations

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.abi import STEPS, misfit
from coda_lang.backend_cutlass.emit import emit
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import Dim, axis_dim

NESTED = """reduce nested<M, N, P>(x: f32[M, N], y: f32[N, P]) -> (r: f32[M]) {
    r <- sum(x * max(abs(y) + x, over=P), over=N)
}"""
ONCE = "reduce once<M, N>(x: f32[M, N]) -> (r: f32[M]) { r <- sum(x, over=N) }"


def kernel(text: str) -> Kernel:
    ir = next(iter(coda.loads(text).values())).ir
    assert isinstance(ir, Kernel)
    return ir


@pytest.mark.parametrize(("columns", "depth", "refused"), [(200, 300, False), (40_000, 20_000, True)])
def test_long_nests_are_refused(columns: int, depth: int, refused: bool) -> None:
    unit = emit(kernel(NESTED), {}, None)
    lengths = {"M": 4, "N": columns, "P": depth}

    def length(dim: Dim) -> int:
        return next(lengths[a] for a in lengths if dim == axis_dim(a))

    ((loops, group),) = unit.nests
    assert (loops, columns * depth // group > STEPS) == ((axis_dim("N"), axis_dim("P")), refused)
    found = misfit(unit, length)
    if not refused:
        assert found is None
        return
    assert found is not None
    assert found.startswith("reductions inside reductions (N = 40000 × P = 20000) take ")
    assert found.endswith(" steps of one thread: split them in two reduces")


def test_a_loop_alone_is_never_too_long() -> None:
    unit = emit(kernel(ONCE), {}, None)
    assert unit.nests == ()
    assert misfit(unit, lambda dim: 10**9) is None
