"""A rehearsal finds the kernels that a step runs, and computes nothing; `precompile` puts them into the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import normal

import coda_lang.torch as ct
from coda_lang.api import Program, Result
from coda_lang.backend_cutlass import toolchain
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.errors import BackendError
from coda_lang.torch import calls
from coda_lang.torch.rehearsal import kernels


class Model:
    """Two blocks and a head, whose loss's gradient is made in two chunks."""

    def __init__(self, width: int = 32) -> None:
        torch.manual_seed(0)
        self.blocks = [ct.LlamaBlock(width, 48, 2, 1, dtype=torch.bfloat16) for _ in range(2)]
        self.head = ct.LinearCrossEntropy(width, 64, dtype=torch.bfloat16, chunk_rows=128)
        self.tables = ct.rope_tables(80, width // 2)
        self.norm = torch.ones(width, requires_grad=True)
        self.x = normal(2, 80, width).requires_grad_()
        self.losses: list[float] = []

    def step(self) -> None:
        y = ct.run_blocks(self.blocks, self.x, *self.tables)
        h, rstd = ct.input_rms(y, self.norm)
        loss = self.head(h, torch.arange(160).view(2, 80) % 64, rstd)
        loss.backward()
        self.losses.append(loss.item())


def test_a_rehearsal_finds_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ran, names = Model(), set(), set()
    real = calls.runner

    def watching(program: Program, outputs: Sequence[str], arguments: Mapping[str, Any]) -> Result:
        given = {n: x for n, x in arguments.items() if n != "out"}
        call = program.caller.call(given, outputs, arguments.get("out"))
        ran.add(program.gpu.emit(call, program.gpu.config(call)).source)
        names.add(program.name)
        return real(program, outputs, arguments)

    found = kernels(model.step)
    monkeypatch.setattr(calls, "runner", watching)
    model.step()
    assert len(found) == len(ran)
    assert {unit.source for unit in found} == ran
    assert {"rmsnorm_cross_entropy_kept", "cross_entropy_bwd_map", "linear_dw_f32", "linear_dw_accumulate"} <= names
    assert {"rope_position_bwd_map", "zdz_from_partials"} <= names


def test_a_rehearsal_leaves_things_as_they_are() -> None:
    model, other = Model(), Model()
    before = [p.detach().clone() for p in model.blocks[0].parameters()]
    kernels(model.step)
    for p, value in zip(model.blocks[0].parameters(), before, strict=True):
        assert torch.equal(p, value)
    model.step()
    other.step()
    assert model.losses[-1] == other.losses[-1]
    assert model.losses[0] == 0.0


def test_random_numbers_are_drawn_again() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    kernels(lambda: torch.rand(5))
    assert torch.equal(torch.rand(4), expected)


def test_one_rehearsal_at_a_time() -> None:
    model = Model()

    def nested() -> None:
        with pytest.raises(RuntimeError, match="one at a time"):
            kernels(model.step)

    kernels(nested)
    assert kernels(model.step)
    model.step()
    assert model.losses[-1] > 1.0


def test_a_step_that_fails_ends_the_rehearsal() -> None:
    model = Model()

    def step() -> None:
        model.step()
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        kernels(step)
    model.step()
    assert model.losses[-1] > 1.0


def test_kernels_follow_the_layout() -> None:
    """Rows that TMA cannot address need another kernel."""
    weight = normal(24, 16)
    aligned = kernels(lambda: ct.residual_rms_linear(normal(9, 16), weight, normal(9, 24), torch.ones(24)))
    strided = kernels(lambda: ct.residual_rms_linear(normal(9, 16), weight, normal(9, 25)[:, :24], torch.ones(24)))
    assert aligned[0].source != strided[0].source
    assert aligned[1].source == strided[1].source


def test_precompile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        toolchain.find()
    except BackendError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))

    def step() -> object:
        return ct.input_rms(normal(9, 32), torch.ones(32))

    assert ct.precompile(step, workers=2) == 2
    for unit in kernels(step):
        assert compile_kernel(unit).report.cached
