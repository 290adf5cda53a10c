"""`tune` asks the tuner for each product of a step once, with the shapes, types, strides and outputs that it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracles import normal
from test_torch_rehearsal import Model

import coda_lang.torch as ct
from coda_lang import arrays
from coda_lang.api import Program
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.data import draw
from coda_lang.errors import BackendError
from coda_lang.ir.program import Kernel
from coda_lang.torch import tuning
from coda_lang.torch.rehearsal import rehearsed
from coda_lang.tuning import tune as tuner

Asked = list[tuple[Program, dict[str, Any], dict[str, Any]]]
CONFIG = Config(64, 64, schedule="pingpong", stages=3, epilogue_n=32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the tuner was asked, with arrays on the host; it finds nothing."""
    found: Asked = []

    def record(program: Program, arguments: dict[str, Any], **options: Any) -> str:
        found.append((program, arguments, options))
        return program.name

    def drawn(kernel: Kernel, library: str, where: int, **options: Any) -> dict[str, Any]:
        """The same on the host."""
        assert library == "torch"
        made = draw(kernel, **options).arguments
        return {n: arrays.to_torch(x) if hasattr(x, "dtype") and x.shape else x for n, x in made.items()}

    monkeypatch.setattr(device, "get", lambda index: SimpleNamespace(name="H200"))
    monkeypatch.setattr(tuner, "tune", record)
    monkeypatch.setattr(tuning, "drawn_on_device", drawn)
    return found


def sources(asked: Asked) -> set[str]:
    """What the calls that were asked for compile to, with one schedule for all."""
    found = set()
    for program, arguments, options in asked:
        found.add(program.gpu.emit(program.caller.call(arguments, options["outputs"], None), CONFIG).source)
    return found


def test_each_product_of_a_step_is_tuned_once(asked: Asked) -> None:
    model = Model()
    products = {program.name for program, call in rehearsed(model.step) if call.kernel.product is not None}
    told: list[tuple[str, int, int]] = []
    ct.tune(model.step, budget=3, progress=lambda *args: told.append(args))
    assert {program.name for program, *_ in asked} == products
    assert {"rmsnorm_cross_entropy_kept", "swiglu_bwd", "rmsnorm_rope_position"} <= products
    assert "rope_position_bwd_map" not in products
    calls = {
        (p.name, str(o["outputs"]), str({n: getattr(x, "shape", None) for n, x in a.items()})) for p, a, o in asked
    }
    assert len(calls) == len(asked)
    assert all(options["budget"] == 3 for *_, options in asked)
    assert [t[1:] for t in told] == [(i, len(asked)) for i in range(len(asked))]
    assert told[0][0].startswith(f"{asked[0][0].name} ")


def test_the_tuners_calls_are_the_steps(asked: Asked) -> None:
    model = Model()
    ran = {p.gpu.emit(c, CONFIG).source for p, c in rehearsed(model.step) if c.kernel.product is not None}
    ct.tune(model.step)
    assert sources(asked) == ran


def test_types_and_strides_have_schedules_of_their_own(asked: Asked) -> None:
    weight, residual, norm = normal(24, 16), normal(9, 25)[:, :24], torch.ones(24)

    def step() -> None:
        ct.linear_act(normal(9, 16), weight, torch.zeros(24), activation="silu")
        ct.linear_act(normal(9, 16).half(), weight.half(), torch.zeros(24), activation="silu")
        ct.residual_rms_linear(normal(9, 16), weight, normal(9, 24), norm)
        ct.residual_rms_linear(normal(9, 16), weight, residual, norm)
        for kind in (torch.int32, torch.int64):
            ct.linear_cross_entropy(normal(9, 16), weight, torch.zeros(9, dtype=kind))

    ran = {p.gpu.emit(c, CONFIG).source for p, c in rehearsed(step) if c.kernel.product is not None}
    ct.tune(step)
    assert len(asked) == len(ran) == 6
    assert sources(asked) == ran


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


def test_without_a_gpu_nothing_is_rehearsed() -> None:
    if device.available() is None:
        pytest.skip("there is one")
    ran: list[int] = []
    with pytest.raises(BackendError):
        ct.tune(lambda: ran.append(1))
    assert not ran
