"""`tune` asks the tuner for each product of a step once, with the shapes, types, inputs and outputs that it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import normal
from test_torch_rehearsal import Model

import coda_lang.torch as ct
from coda_lang.api import Program
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call
from coda_lang.torch.rehearsal import rehearsed
from coda_lang.tuning import tune as tuner

Asked = list[tuple[Program, dict[str, Any]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the tuner was asked; it finds nothing."""
    found: Asked = []

    def record(program: Program, **options: Any) -> str:
        found.append((program, options))
        return program.name

    monkeypatch.setattr(tuner, "tune", record)
    return found


def test_each_product_of_a_step_is_tuned_once(asked: Asked) -> None:
    model = Model()
    products = {program.name for program, call in rehearsed(model.step) if call.kernel.product is not None}
    told: list[tuple[str, int, int]] = []
    ct.tune(model.step, budget=3, progress=lambda *args: told.append(args))
    assert {program.name for program, _ in asked} == products
    assert {"rmsnorm_cross_entropy", "swiglu_bwd", "rmsnorm_rope_position"} <= products
    assert "rope_position_bwd_map" not in products
    calls = [(p.name, *(str(o[n]) for n in ("sizes", "inputs", "outputs"))) for p, o in asked]
    assert len(set(calls)) == len(calls)
    assert all(options["budget"] == 3 for _, options in asked)
    assert [t[1:] for t in told] == [(i, len(asked)) for i in range(len(asked))]
    assert told[0][0].startswith(f"{asked[0][0].name} ")


def test_the_tuners_calls_are_the_steps(asked: Asked) -> None:
    """With one schedule for all, a random call of the request compiles to what the step runs."""
    model, config = Model(), Config(64, 64, schedule="pingpong", stages=3, epilogue_n=32)

    def source(gpu: GpuProgram, call: Any) -> str:
        return gpu.emit(call, config).source

    ran = {source(p.gpu, c) for p, c in rehearsed(model.step) if c.kernel.product is not None}
    ct.tune(model.step)
    found = set()
    for program, options in asked:
        assert isinstance(program.ir, Kernel)
        request = {n: options[n] for n in ("sizes", "dtypes", "inputs", "outputs")}
        found.add(source(program.gpu, described_call(program.ir, **request)))
    assert found == ran


def test_what_was_tuned_is_left_unless_asked_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(70, 32), normal(48, 32)

    def step() -> object:
        return ct.linear_act(x, weight, torch.zeros(48), activation="silu")

    ct.tune(step)
    assert len(asked) == 1
    monkeypatch.setattr(GpuProgram, "tuned", lambda *_: Config())
    ct.tune(step)
    assert len(asked) == 1
    ct.tune(step, again=True)
    assert len(asked) == 2
