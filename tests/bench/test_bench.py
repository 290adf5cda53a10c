"""A benchmark of one call from end to end, on a GPU that stands in: no GPU of torch's, so most peers are absent."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))

from standing_gpu import BEST, PROGRAMS, FakeGpu, fake, favour

import coda_lang as coda
from coda_lang.backend_cutlass.config import Config
from coda_lang.bench import plot, run
from coda_lang.bench.peers import AbsentError, Peer, Task
from coda_lang.bench.rows import Row, merged, read, write
from coda_lang.bench.run import DEFAULT, OURS, WrongError, bench
from coda_lang.errors import BackendError
from coda_lang.tuning.tune import tune

__all__ = ["fake"]
SIZES = {"M": 200, "N": 320, "K": 64}


@pytest.fixture
def swiglu(fake: FakeGpu) -> coda.Program:
    fake.noise = 0.0
    return fake.serve(coda.load(PROGRAMS / "swiglu.coda")["swiglu"])


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch, fake: FakeGpu) -> dict[str, Any]:
    """Peers that take 0.05 ms, and return what the dictionary says."""
    shared: dict[str, Any] = {}

    def find(name: str, binding: Any, library: str, options: Any) -> Peer:
        if name == "liger":
            raise AbsentError("it has no kernel for this")
        if name == "torch.compile":
            raise RuntimeError("the compiler gave up\nin many lines")

        def prepare(arguments: Any) -> Task:
            def work() -> None:
                fake.clock += 0.05

            return Task(work, lambda _: shared if name == "quack" else {})

        return Peer(prepare, "of another layout" if name == "quack" else None)

    monkeypatch.setattr(run, "find", find)
    return shared


def test_a_row(swiglu: coda.Program, fake: FakeGpu, joined: dict[str, Any]) -> None:
    fake.ms = lambda config: 0.1
    row = bench(swiglu, sizes=SIZES, outputs=["y"], rounds=4)
    assert (row.program, row.kernel, row.m, row.n, row.k, row.dtype) == ("swiglu", "swiglu", 200, 320, 64, "bf16")
    assert (row.ours_ms, row.default_ms) == pytest.approx((0.1, 0.1))
    assert (row.cublas_ms, row.quack_ms) == pytest.approx((0.05, 0.05))
    assert (row.torch_compile_ms, row.liger_ms) == (None, None)
    assert row.absent == {
        "torch.compile": "failed: RuntimeError: the compiler gave up",
        "liger": "it has no kernel for this",
    }
    assert row.notes == {"quack": "of another layout"}
    assert set(row.samples) == {OURS, "cublas", "quack"}
    assert all(len(x) == 4 for x in row.samples.values())
    assert row.ratio("ours_ms") == pytest.approx(2)
    assert row.interval == pytest.approx([2, 2])
    assert row.tflops == pytest.approx(2 * 200 * 320 * 64 / 0.1 / 1e9)
    assert 0 < row.least_ms < 0.01
    assert row.config == row.default_config
    assert (row.outputs, row.inputs) == (["y"], ["a", "b"])


def test_a_tuned_call_has_its_default_beside_it(swiglu: coda.Program, fake: FakeGpu, joined: dict[str, Any]) -> None:
    fake.ms = favour(BEST)
    found = tune(swiglu, sizes=SIZES, outputs=["y"], budget=16, workers=1)
    assert found.winner != found.default
    row = bench(swiglu, sizes=SIZES, outputs=["y"], rounds=3, others=["64x64,pingpong,cluster=1x1", found.default])
    assert (row.config, row.default_config) == (str(found.winner), str(found.default))
    assert row.ours_ms < row.default_ms
    assert set(row.samples) == {OURS, DEFAULT, str(Config.parse("64x64,pingpong,cluster=1x1")), "cublas", "quack"}
    given = bench(swiglu, sizes=SIZES, outputs=["y"], rounds=3, config=found.default, peers=())
    assert given.config == str(found.default)
    assert (given.cublas_ms, given.interval, given.ratio("ours_ms")) == (None, None, None)


def test_what_disagrees_is_not_timed(swiglu: coda.Program, fake: FakeGpu, joined: dict[str, Any]) -> None:
    right = bench(swiglu, sizes=SIZES, outputs=["y"], rounds=1, peers=())
    assert right.checked == []
    given = run.drawn_on_device(swiglu.ir, "cupy", sizes=SIZES)
    y = swiglu.interpret(a=given["a"].data, b=given["b"].data, outputs=["y"]).y
    joined["y"] = fake.hold(y)
    assert bench(swiglu, sizes=SIZES, outputs=["y"], rounds=1).checked == ["quack: y"]
    joined["y"] = fake.hold(y * y.dtype.type(1.1))
    with pytest.raises(WrongError, match=r"`y` differs from quack's: relative error 0\.09"):
        bench(swiglu, sizes=SIZES, outputs=["y"], rounds=1)
    fake.idle = lambda config: True
    joined["y"] = fake.hold(y)
    with pytest.raises(WrongError, match="relative error nan"):
        bench(swiglu, sizes=SIZES, outputs=["y"], rounds=1)


def test_partials_are_compared_as_the_whole(fake: FakeGpu, joined: dict[str, Any]) -> None:
    program = fake.serve(coda.load(PROGRAMS / "cross_entropy.coda")["cross_entropy"])
    given = run.drawn_on_device(program.ir, "cupy", sizes=SIZES)
    host = {n: x.data if hasattr(x, "data") else x for n, x in given.items()}
    joined["lse"] = fake.hold(program.interpret(**host, tile=(256, 512), outputs=["lse"]).lse[:, 0])
    assert bench(program, sizes=SIZES, outputs=["lse", "t"], rounds=1).checked == ["quack: lse"]


def test_peers_find_what_is_updated_in_place_as_it_was(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake.serve(coda.load(PROGRAMS / "linear_dw.coda")["linear_dw_accumulate"])
    (updated,) = [p.name for p in program.ir.params if p.inout]
    seen = []

    def prepare(arguments: Any) -> Task:
        def work() -> None:
            fake.clock += 0.05
            seen.append(arguments[updated].data.copy())
            arguments[updated].data[...] = 1e4

        return Task(work, lambda _: {})

    monkeypatch.setattr(run, "find", lambda *a: Peer(prepare))
    fake.poisoned = True  # the stand-in computes what is launched, and writes it there
    bench(program, sizes={"M": 48, "N": 32, "K": 16}, rounds=1, peers=["cublas", "torch.compile"])
    pristine = run.drawn_on_device(program.ir, "cupy", sizes={"M": 48, "N": 32, "K": 16})[updated].data
    assert np.array_equal(seen[0], pristine)
    assert sum(np.array_equal(x, pristine) for x in seen) >= 2, "restored for the second peer too"


def test_what_has_no_product(fake: FakeGpu) -> None:
    program = fake.serve(coda.load(PROGRAMS / "qk_norm.coda")["qk_norm_map"])
    row = bench(program, sizes={"M": 32}, rounds=2, peers=["cublas"])
    assert (row.k, row.config, row.tflops, row.cublas_ms) == (None, None, None, None)
    assert row.absent == {"cublas": "a map has no product"}


def test_progress_is_told(swiglu: coda.Program, joined: dict[str, Any]) -> None:
    told: list[tuple[str, int, int]] = []
    bench(swiglu, sizes=SIZES, rounds=2, progress=lambda *x: told.append(x))
    assert {what for what, _, _ in told} == {"compiling", "preparing", "timing"}
    assert all(0 <= done <= total for _, done, total in told)


# -- files and pictures ------------------------------------------------------------------------------------------------

ROW = Row(
    program="linear",
    kernel="linear",
    m=4096,
    n=4096,
    k=4096,
    dtype="bf16",
    ours_ms=0.18,
    cublas_ms=0.17,
    torch_compile_ms=0.2,
    quack_ms=None,
    liger_ms=None,
    config="128x128",
    samples={"coda_lang": [0.18]},
    default_ms=0.18,
    default_config="128x128",
    interval=[1.05, 1.06],
    tflops=763.0,
    least_ms=0.139,
    outputs=["d"],
    inputs=["a", "b"],
    checked=[],
    absent={"quack": "not installed"},
    label="linear",
    group="forward",
)


def test_results_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    write(path, [ROW], {"gpu": "H200", "driver": "580", "date": "today", "versions": {}})
    about, rows = read(path)
    assert (about["gpu"], rows) == ("H200", [ROW])
    data = json.loads(path.read_text())
    wanted = "program kernel m n k dtype ours_ms cublas_ms torch_compile_ms quack_ms liger_ms config samples"
    assert set(wanted.split()) <= set(data["rows"][0])
    assert data["rows"][0]["quack_ms"] is None
    data["rows"][0]["of the future"] = 1
    path.write_text(json.dumps(data))
    assert read(path)[1] == [ROW]
    write(path, [ROW])
    assert set(read(path)[0]) == {"gpu", "driver", "date", "versions"}


def test_the_later_of_two_measurements_stays() -> None:
    later, other = replace(ROW, ours_ms=0.1), replace(ROW, m=8192)
    assert merged([[ROW, other], [later]]) == [other, later]


@pytest.mark.skipif(plot.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_plots(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, kernel="rope", quack_ms=0.19), replace(ROW, m=8192, group="more", cublas_ms=None)]
    about = {"gpu": "H200", "date": "today"}
    plot.bars(tmp_path / "bars.svg", rows, about)
    assert "<svg" in (tmp_path / "bars.svg").read_text()
    first_alone = [replace(ROW, quack_ms=0.19), replace(ROW, kernel="rope")]  # the lowest bar has no such time
    plot.bars(tmp_path / "first.svg", first_alone, about)
    assert "<!-- QuACK -->" in (tmp_path / "first.svg").read_text()
    with pytest.raises(ValueError, match="no row has a time"):
        plot.bars(tmp_path / "none.svg", rows[2:], about)
    sizes = [replace(ROW, m=m, kernel=k) for m in (16, 128, 4096) for k in ("linear", "rope")]
    plot.lines(tmp_path / "lines.svg", sizes, about)
    assert "<svg" in (tmp_path / "lines.svg").read_text()


def test_without_matplotlib_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match="matplotlib is not installed"):
        plot.bars(tmp_path / "x.svg", [ROW], {})
