"""What `compile` takes, and what it says about the kernel that came out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import coda_lang as coda
from coda_lang import ArgumentError
from coda_lang.backend_cutlass import program
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.report import Report

TEXT = """kernel k<M, N, K; T: bf16 | f16>(a: T[M, K], b: T[N, K], w: f32[N], c: T[M, N] = 0) -> (y: T[M, N]) {
    y <- (a @ b.T) * w + c
}
map f<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x * 2.0 }
"""
REPORT = Report(168, 0, 0, 0, 1024, 200_000, 64, 90_000, "sm_90a", "13.0", (), False, 3.9, 3.9, 0.05, 0.01)


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A compiler that reports the bytes of spills that the list holds."""
    found = [0]

    def compile_kernel(emitted: Any, arch: str, **more: Any) -> Cubin:
        report = replace(REPORT, spill_store_bytes=found[0], spill_load_bytes=2 * found[0])
        return Cubin(b"", emitted.entry, arch, "0" * 64, report)

    monkeypatch.setattr(program, "compile_kernel", compile_kernel)
    return found


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"T": "f16"}, "k: compile takes no `T`: write `dtypes={'T': 'f16'}`"),
        ({"M": 512}, "k: compile takes no `M`: a compiled kernel is good for all lengths"),
        ({"c": True}, "k: compile takes no `c`: a compiled kernel is good for all arrays; `inputs` names the optional"),
        ({"confg": "128x128"}, "k: compile takes no `confg`: did you mean `config`?"),
        ({"tile": 3}, "k: compile takes no `tile`: it takes arch, dtypes, inputs, outputs, config"),
        ({"dtypes": {"T": "f32"}}, "k: `T` is bf16 or f16, got 'f32'"),
        ({"inputs": ["w"]}, "k: no optional input `w`: the optional inputs are c"),
        ({"outputs": ["z"]}, "k: no output `z`: its outputs are y"),
        ({"config": "256x256"}, "k: the schedule 256x256,cluster=2x1,cooperative does not fit: 256 acc"),
        ({"config": "128x100"}, "does not fit: tile_n = 100: wgmma tiles here are"),
        ({"config": "big"}, "k: `big` is no part of a schedule: write a tile, as in 128x256, and cooperative|"),
    ],
)
@pytest.mark.usefixtures("spilled")
def test_wrong_choices(choices: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)):
        coda.loads(TEXT).k.compile(**choices)


@pytest.mark.usefixtures("spilled")
def test_stages_that_are_not_named_are_as_many_as_fit() -> None:
    k = coda.loads(TEXT).k
    bare = k.compile(config="128x256,cooperative").config
    assert bare is not None
    assert k.compile(config=f"128x256,cooperative,stages={bare.stages}").config == bare
    text = f"stages={bare.stages + 1} does not fit: .* 232448 at most; at most stages={bare.stages} fit"
    with pytest.raises(ArgumentError, match=text):
        k.compile(config=f"128x256,cooperative,stages={bare.stages + 1}")
    with pytest.raises(ArgumentError, match="232448 at most, even with 2 stages"):
        k.compile(config="256x192,cooperative,epilogue=64,stores=8", inputs=["c"])
    assert k.compile(config=str(bare)).config == bare


@pytest.mark.usefixtures("spilled")
def test_a_map_has_no_schedule() -> None:
    with pytest.raises(ArgumentError, match="f: a map has no schedule to choose"):
        coda.loads(TEXT).f.compile(config="128x128")


def test_spills_are_warned_of(spilled: list[int]) -> None:
    k = coda.loads(TEXT).k
    assert k.compile().report.warnings == ()
    spilled[0] = 48
    assert k.compile(config="128x128,pingpong,stages=4").report.warnings == ()
    spilled[0] = 60
    (text,) = k.compile(config="128x128,pingpong,stages=4").report.warnings
    assert text.startswith(
        "registers spill: each thread stores 60 bytes of values to memory and loads 120; try the schedule"
    )
    thrifty = re.search(r"the schedule (\S+), or", text)
    assert thrifty is not None
    done = k.compile(config=thrifty[1])
    assert done.config is not None
    assert (done.config.rolled, done.config.epilogue_n) == (1, 32)
    assert "load or store fewer tiles in one kernel" in done.report.warnings[0]
    assert "compute less in one program" in coda.loads(TEXT).f.compile().report.warnings[0]
    assert "warning: registers spill" in str(done.report)
