"""Prepared calls of programs, on a driver that only records: what is asked for, and arrays that change between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass import driver, program
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.launch import Launchable
from coda_lang.errors import ArgumentError
from coda_lang.program import Program
from coda_lang.tuning import lookup

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch: pytest.MonkeyPatch, cuda: Any, machine: Any, fake_cubin: Cubin, fake_library: Any) -> None:
    """Kernels compile to nothing, and launches are recorded."""

    def compile_kernel(emitted: Any, arch: str, **more: Any) -> Cubin:
        cuda.block_bytes = emitted.params_bytes
        return fake_cubin

    monkeypatch.setattr(program, "compile_kernel", compile_kernel)
    monkeypatch.setattr(program, "Launchable", lambda cubin, emitted: Launchable(cubin, emitted, *machine))
    monkeypatch.setattr(driver, "load", lambda: machine[0])
    monkeypatch.setattr(lookup, "enabled", lambda: False)


def of(text: str) -> Program:
    found = coda.loads(text)["k"]
    assert isinstance(found, Program)
    return found


# -- what is asked for -------------------------------------------------------------------------------------------------

OPTIONAL = [
    "map k<M, N>(x: f32[M, N]) -> (y: f32[M, N]?) { y <- x }",
    "reduce k<M, N>(x: f32[M, N]) -> (y: f32[M]?) { y <- sum(x, over=N) }",
    "kernel k<M, N, K>(x: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N]?) { y <- x @ b.T }",
]


@pytest.mark.parametrize("text", OPTIONAL)
def test_a_kernel_that_writes_nothing_is_refused(text: str, on_gpu: Make) -> None:
    k = of(text)
    dtype = "bf16" if k.kind == "kernel" else "f32"
    there: dict[str, Any] = {n: on_gpu((64, 64), dtype) for n in ("x", "b")[: len(k.ir.params)]}
    here: dict[str, Any] = {n: x.data for n, x in there.items()}
    wrong = pytest.raises(ArgumentError, match="k: nothing is asked for: name some of its `outputs`")
    asked: Any
    for asked in (None, []):
        with wrong:
            k.compile(outputs=asked)
        with wrong:
            k(**there, outputs=asked)
        with wrong:
            k.plan(**there, outputs=asked)
        assert not len(k.interpret(**here, outputs=asked))
    assert k.compile(outputs=["y"]).source


def test_what_is_updated_in_place_need_not_be_asked_for() -> None:
    text = "map k<M, N>(x: f32[M, N], inout w: f32[M, N]) -> (y: f32[M, N]?) { w +<- x  y <- x }"
    assert "Store_w" in of(text).compile().source


def test_the_tap_needs_no_output_that_reads_the_accumulator() -> None:
    assert "using Tap" in of(OPTIONAL[2]).compile(tap=True).source
    text = "kernel k<M, N, K>(x: bf16[M, K], b: bf16[N, K], c: f32[M, N]) -> (y: f32[M, N]?, z: f32[M, N])"
    assert "using Tap" in of(text + " { y <- x @ b.T  z <- c }").compile(tap=True).source
