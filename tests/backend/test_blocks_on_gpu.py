"""Plans of blocks: launches on the right arrays, one allocation of temporaries, and arguments that change between runs.

The GPU is host memory, and a launch is the interpreter on the arrays that the plan points at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang import arrays
from coda_lang.arrays import ITEM_BYTES, ArrayView
from coda_lang.backend_cutlass import block, tensormap
from coda_lang.backend_cutlass import program as gpu
from coda_lang.backend_cutlass.abi import output_key
from coda_lang.backend_cutlass.device import Device
from coda_lang.call import Call
from coda_lang.cli import gpu_block, transfer
from coda_lang.cli.backend import Options
from coda_lang.data import draw
from coda_lang.errors import ArgumentError
from coda_lang.ir.numerics import STORAGE
from coda_lang.ir.program import Kernel
from coda_lang.program import Program
from coda_lang.tuning import lookup

PROGRAMS = Path(__file__).parents[2] / "programs"
Make = Callable[..., Any]


def host(view: ArrayView) -> np.ndarray[Any, Any]:
    """The memory that a view points at."""
    item = ITEM_BYTES[view.dtype]
    count = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) + 1 if prod(view.shape) else 0
    memory = (ctypes.c_uint8 * (count * item)).from_address(view.pointer)
    flat = np.frombuffer(memory, np.uint8).view(STORAGE[view.dtype])
    strides = tuple(s * item for s in view.strides)
    return np.lib.stride_tricks.as_strided(flat, view.shape, strides)


@dataclass
class Launched:
    """Stands for `Planned`: runs the interpreter with the tile of the schedule."""

    program: Program
    views: dict[str, ArrayView]
    scalars: dict[str, Any]
    axes: dict[str, int]
    outputs: list[str]
    tile: tuple[int, int]
    notes: tuple[str, ...] = ()
    config: None = None
    binds: int = 0

    def __call__(self) -> None:
        names = frozenset(p.name for p in self.program.ir.params)
        given = {n: host(v) for n, v in self.views.items() if n in names}
        out = {o: host(self.views[output_key(names, o)]) for o in self.outputs}
        self.program.interpret(**given, **self.scalars, **self.axes, tile=self.tile, outputs=self.outputs, out=out)

    def point(self, views: Mapping[str, ArrayView]) -> None:
        self.binds += 1
        for name, view in views.items():
            old = self.views[name]
            if (view.shape, view.strides, view.dtype) != (old.shape, old.strides, old.dtype):
                raise ArgumentError("differs")
        self.views |= views


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, fake_library: Any) -> list[Launched]:
    made: list[Launched] = []

    def plan(self: gpu.GpuProgram, call: Call[Kernel], config: Any = None) -> Launched:
        names = frozenset(p.name for p in call.kernel.params)
        views = {**call.tensors, **{output_key(names, n): v for n, v in call.out.items()}}
        tile = self.tile(call)
        for o in call.kernel.outputs:  # the plan has placed what this schedule makes
            assert call.out[o.name].shape == call.binding.shape(o, tile)
        axes = {n: x for n, x in call.binding.extents.items() if n in call.kernel.axes}
        program = Program(self._caller.ir)
        made.append(Launched(program, views, dict(call.scalars), axes, [o.name for o in call.kernel.outputs], tile))
        return made[-1]

    monkeypatch.setattr(gpu.GpuProgram, "plan", plan)
    monkeypatch.setattr(arrays, "current_stream", lambda views, device: 0)
    monkeypatch.setattr(lookup, "enabled", lambda: False)
    monkeypatch.setattr(block, "is_cached", lambda unit: True)
    return made


def on_device(on_gpu: Make, arguments: Mapping[str, Any]) -> dict[str, Any]:
    there = {}
    for name, x in arguments.items():
        if isinstance(x, np.ndarray):
            dtype = next(n for n, t in STORAGE.items() if t == x.dtype)
            there[name] = on_gpu(x.shape, dtype)
            there[name].data[...] = x
        else:
            there[name] = x
    return there


def same(got: Any, want: Any) -> None:
    assert got.data.dtype == want.dtype
    np.testing.assert_array_equal(got.data.view(np.uint8), want.view(np.uint8))


def drawn(program: Any, seed: int = 0, **sizes: int) -> dict[str, Any]:
    return draw(program.ir, seed=seed, sizes=sizes).arguments


@pytest.mark.parametrize("name", ["llama_layer", "llama_layer_bwd", "llama_last", "llama_last_bwd", "llama_first"])
def test_a_plan_computes_what_the_interpreter_does(name: str, launches: list[Launched], on_gpu: Make) -> None:
    program = coda.load(PROGRAMS / "llama_layer.coda")[name]
    sizes = {"M": 40, "D": 64, "F": 96, "A": 32, "Q": 64, "V": 160, "P": 16}
    arguments = drawn(program, **{n: x for n, x in sizes.items() if n in program.ir.axes})
    plan = program.plan(**on_device(on_gpu, arguments))
    got = plan()
    tiles = {launched.tile for launched in launches}
    for tile in tiles:  # partials may differ, and so the last bits of what follows from them
        want = program.interpret(**{n: np.copy(x) if isinstance(x, np.ndarray) else x for n, x in arguments.items()},
                               tile=tile)  # fmt: skip
        for output, x in want.items():
            close = np.abs(got[output].data.astype(np.float64) - x.astype(np.float64))
            assert close.max() <= 0.02 * np.abs(x.astype(np.float64)).max(), output
    if len(tiles) == 1:
        for output, x in want.items():
            same(got[output], x)


TWICE = """
map double<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- 2.0 * x }
map grow<M, N>(x: f32[M, N], inout sum: f32[M, N]) -> () { sum +<- x }
block piece<M by 16, N>(x: f32[M, N], inout s: f32[M, N]) -> (y: f32[M, N]) {
    h = double(x)
    grow(h, sum=s)
    y <- double(h)
}
block b<M, N>(x: f32[M, N], inout s: f32[M, N]) -> (y: f32[M, N]) { y <- double(piece(double(x), s=s)) }
"""


def test_pieces_lie_in_the_whole_arrays(launches: list[Launched], on_gpu: Make) -> None:
    program = coda.loads(TWICE).b
    x, s = (np.random.default_rng(i).standard_normal((40, 8)).astype(np.float32) for i in range(2))
    there = on_device(on_gpu, {"x": x, "s": s})
    plan = program.plan(**there)
    assert len(plan.launches) == 2 + 3 * 3
    got = plan()
    np.testing.assert_array_equal(got["y"].data, 16 * x)
    np.testing.assert_array_equal(got["s"].data, s + 4 * x)
    assert got["s"] is there["s"]
    plan()
    np.testing.assert_array_equal(got["s"].data, s + 4 * x + 4 * x)


def test_a_second_call_prepares_nothing(
    launches: list[Launched], on_gpu: Make, fake_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = coda.loads(TWICE).b
    first, second = (on_device(on_gpu, drawn(program, seed, M=40, N=8)) for seed in (1, 2))
    before = {n: x.data.copy() for n, x in second.items() if hasattr(x, "data")}
    made: list[tuple[int, ...]] = []
    empty = fake_library.empty
    monkeypatch.setattr(fake_library, "empty", lambda shape, *rest: made.append(shape) or empty(shape, *rest))
    one = program(**first)
    prepared, allocated = len(launches), len(made)
    assert allocated == 2  # an output, and the temporaries
    two = program(**second)
    assert len(launches) == prepared
    assert made[allocated:] == [(40, 8)]  # the output alone
    np.testing.assert_array_equal(two.y.data, 16 * before["x"])
    np.testing.assert_array_equal(second["s"].data, before["s"] + 4 * before["x"])
    assert one.y is not two.y
    np.testing.assert_array_equal(one.y.data, 16 * first["x"].data)


def test_what_is_missing_is_compiled_together(
    launches: list[Launched], on_gpu: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = coda.loads(TWICE).b
    asked: list[list[str]] = []
    monkeypatch.setattr(block, "is_cached", lambda unit: False)
    monkeypatch.setattr(block, "refuse_capture", lambda stream: None)
    monkeypatch.setattr(block, "compile_many", lambda units: asked.append([u.entry for u in units]))
    program.plan(**on_device(on_gpu, drawn(program, M=40, N=8)))
    assert [sorted(units) for units in asked] == [["coda_double", "coda_grow"]]


def test_a_second_call_refuses_what_the_first_does(launches: list[Launched], on_gpu: Make) -> None:
    program = coda.loads(TWICE).b
    there = on_device(on_gpu, drawn(program, M=40, N=8))
    for _ in range(2):
        with pytest.raises(ArgumentError, match="shares memory with input `x`"):
            program(**there, out={"y": there["x"]})
        program(**there)


def test_given_outputs_and_other_forms(launches: list[Launched], on_gpu: Make) -> None:
    program = coda.loads(TWICE).b
    there = on_device(on_gpu, drawn(program, M=20, N=8))
    y = on_gpu((20, 8), "f32", pitch=16)
    out = program(**there, out={"y": y})
    assert out.y is y
    np.testing.assert_array_equal(y.data, 16 * there["x"].data)
    prepared = len(launches)
    program(**on_device(on_gpu, drawn(program, M=24, N=8)))
    assert len(launches) > prepared  # another shape is another plan


def test_temporaries_can_be_moved_by_tma(launches: list[Launched], on_gpu: Make) -> None:
    """Rows of odd lengths begin at multiples of 16 bytes, and so do pieces: nothing is copied to fit."""
    program = coda.load(PROGRAMS / "llama_layer.coda").llama_head_bwd
    program.plan(**on_device(on_gpu, drawn(program, M=5000, D=64, V=1003)))
    own = {n for n, p in ((p.name, p) for p in program.ir.params) if p.dims}
    moved = 0
    for launched in launches:
        for name, view in launched.views.items():
            if len(view.shape) == 2 and name not in own:
                assert tensormap.misfit(view) is None, name
                moved += 1
    assert moved >= 3 * 4


def test_plans_are_kept_within_bounds(launches: list[Launched], on_gpu: Make) -> None:
    program = coda.loads(TWICE).b
    for rows in range(1, 12):
        program(**on_device(on_gpu, drawn(program, M=rows, N=8)))
    assert len(program.gpu._kept) == 8


def test_scalars_are_part_of_a_plan(launches: list[Launched], on_gpu: Make) -> None:
    program = coda.loads(
        "map m<M, N>(x: f32[M, N], k: f32) -> (y: f32[M, N]) { y <- k * x }"
        "block b<M, N>(x: f32[M, N], k: f32) -> (y: f32[M, N]) { y <- m(m(x, k=k), k=k) }"
    ).b
    x = on_gpu((2, 4))
    x.data[...] = 1.0
    for k in (2.0, 3.0, -0.0, 0.0):
        got = program(x=x, k=k).y.data
        np.testing.assert_array_equal(got, np.float32(k) * np.float32(k) * x.data)


@pytest.mark.parametrize("comparing", [False, True])
def test_the_command_line_runs_and_compares_blocks(
    comparing: bool, launches: list[Launched], on_gpu: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = coda.load(PROGRAMS / "llama_layer.coda").llama_head_bwd
    arguments = drawn(program, M=40, D=64, V=96)
    monkeypatch.setattr(arrays, "to_device", lambda x, device, name: on_device(on_gpu, {name: x})[name])
    monkeypatch.setattr(transfer, "synchronise", lambda: None)
    monkeypatch.setattr(gpu_block, "_read", lambda view: host(view).copy())
    monkeypatch.setattr(gpu_block.device, "get", lambda ordinal: Device(ordinal, "Fake GPU", 132, 0))
    want = program.interpret(**{n: np.copy(x) if isinstance(x, np.ndarray) else x for n, x in arguments.items()})
    ran = gpu_block.run(program, arguments, Options(compare=comparing), None)
    for name, x in want.items():
        same_values(ran.outputs[name], x)
    assert ran.facts is not None
    assert [x["kernel"] for x in ran.facts["launches"]] == [
        "rmsnorm_cross_entropy_bwd", "linear_dx", "drstd_from_partials", "linear_dw_accumulate",
    ]  # fmt: skip
    names = [line.name for line in ran.compared]
    if comparing:
        assert all(not line.wrong for line in ran.compared)
        assert "rmsnorm_cross_entropy_bwd.da" in names
        assert "linear_dw_accumulate.dw" in names
    else:
        assert not names


def same_values(got: Any, want: Any) -> None:
    """Up to the order of sums: the schedules' tiles are not the interpreter's."""
    wide = want.astype(np.float64)
    assert np.abs(got.astype(np.float64) - wide).max() <= 0.02 * np.abs(wide).max()
