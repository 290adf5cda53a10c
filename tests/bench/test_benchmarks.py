"""The scripts below benchmarks/: every row is a call that can be built, and the table can be made in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import groups
import host
import maps
import ncu
import run as script
import startup
from groups import GROUPS, Spec
from standing_gpu import FakeGpu, fake

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import rejection
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.bench.rows import read
from coda_lang.call import Caller
from coda_lang.measure.described import described_call
from coda_lang.measure.gpu import GpuStopwatch

__all__ = ["fake"]
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-h200.json"
Out = pytest.CaptureFixture[str]


# -- the rows ----------------------------------------------------------------------------------------------------------


def every() -> Iterator[Spec]:
    for specs in GROUPS.values():
        yield from specs


@pytest.mark.parametrize("group", GROUPS)
def test_every_row_is_a_call_of_its_shape(group: str) -> None:
    for spec in GROUPS[group]:
        program = spec.program()
        call = described_call(program.ir, sizes=spec.sizes(program.ir), inputs=spec.inputs, outputs=spec.outputs)
        gpu = GpuProgram(Caller(program.ir))
        config = gpu.untuned(call)
        assert rejection(config, footprint(call.kernel, call.binding.dtypes)) is None
        assert call.kernel.rows is not None
        assert call.kernel.cols is not None
        assert call.kernel.product is not None
        dims = (call.kernel.rows, call.kernel.cols, call.kernel.product.contracted)
        assert tuple(map(call.binding.length, dims)) == (spec.m, spec.n, spec.k)
        assert not gpu.emit(call, config).direct


MUST = (
    "linear linear_dx linear_dw linear_tt rmsnorm_linear linear_silu linear_gelu rmsnorm_swiglu swiglu "
    "rope rope_position residual_rms quantize residual_rms_bwd swiglu_bwd gelu_bwd rope_bwd "
    "linear_dw_accumulate"
)


def test_what_the_table_must_have() -> None:
    rows = {(s.kernel, s.m, s.n, s.k) for s in every()}
    for size in (4096, 8192):
        kernels = {k for k, *shape in rows if shape == [size] * 3}
        assert set(MUST.split()) <= kernels
    for vocabulary in (32768, 131072):
        assert {("cross_entropy", 4096, vocabulary, 4096), ("cross_entropy_bwd", 4096, vocabulary, 4096)} <= rows
    for width, mlp in ((2048, 5632), (4096, 11008), (8192, 22016)):
        assert ("rmsnorm_swiglu", 16384, 2 * mlp, width) in rows
        assert ("residual_rms", 16384, width, mlp) in rows
        assert ("swiglu_bwd", 16384, mlp, width) in rows
        assert ("residual_rms_bwd", 16384, width, 2 * mlp) in rows
    assert {s.m for s in GROUPS["scaling-linear"]} == {2**i for i in range(4, 18)}
    assert {(s.n, s.k) for s in GROUPS["scaling-linear"]} == {(4096, 4096)}
    assert all(128 <= s.m < 2048 for s in GROUPS["few-rows"])
    assert len({(s.group, s.kernel, s.label, s.m, s.n, s.k) for s in every()}) == len(list(every()))


def test_kernels_that_are_compiled_ahead_are_those_that_tuning_needs_first() -> None:
    made = script.units(GROUPS["linear-4096"][:1], 10)
    assert len(made) == 7
    assert len({u.source for u in made}) == 7
    assert all("linear" in u.entry for u in made)
    assert len(script.units([*GROUPS["linear-4096"][:1]] * 2, 10)) == 7


# -- measuring in parts ------------------------------------------------------------------------------------------------

SMALL = [replace(spec, m=200, n=320, k=64, group="small") for spec in (groups.LINEAR[0], groups.FUSED[1])]


@pytest.fixture
def small(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A group of small rows, and a GPU that knows their programs."""
    for spec in SMALL:
        fake.serve(spec.program())
    monkeypatch.setitem(script.GROUPS, "small", SMALL)
    monkeypatch.setattr(script, "GROUPS", {"small": SMALL})
    monkeypatch.setattr(script, "compile_many", fake.compile_many)
    return fake


def measure(folder: Path, *more: str) -> int:
    command = ["measure", "small", "--out", str(folder), "--budget", "2", "--rounds", "1", "--peers", "quack", *more]
    return script.main(command)


def test_some_kernels_of_a_group(small: FakeGpu, tmp_path: Path, capsys: Out) -> None:
    assert measure(tmp_path, "--only", SMALL[1].kernel) == 0
    _, rows = script.results.read(tmp_path / "small.json")
    assert [r.kernel for r in rows] == [SMALL[1].kernel]
    with pytest.raises(SystemExit):
        measure(tmp_path, "--only", f"{SMALL[0].kernel},linaer")
    assert "--only: no row of these groups measures linaer" in capsys.readouterr().err


def test_measuring_goes_on_where_it_ended(
    small: FakeGpu, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "TYPICAL_SECONDS", 0.0)
    plain = script.one
    calls: list[str] = []
    faults = [MemoryError("no memory left")]

    def one(spec: Spec, options: Any) -> Any:
        calls.append(spec.kernel)
        if spec.kernel == "swiglu" and faults:
            raise faults.pop()
        return plain(spec, options)

    monkeypatch.setattr(script, "one", one)
    assert measure(tmp_path) == 1
    out = capsys.readouterr().out
    assert "swiglu 200×320×64 failed: no memory left" in out
    assert "1 row failed: call again" in out
    about, rows = read(tmp_path / "small.json")
    assert about["failed"] == {"swiglu 200×320×64": "MemoryError: no memory left"}
    assert [r.kernel for r in rows] == ["linear"]
    assert all(r.group == "small" and r.label for r in rows)
    assert rows[0].absent["quack"]
    calls.clear()
    assert measure(tmp_path) == 0
    assert calls == ["swiglu"], "what is measured is not measured again"
    assert read(tmp_path / "small.json")[0]["failed"] == {}
    assert "all rows are there" in capsys.readouterr().out


def test_a_row_is_not_begun_that_the_time_does_not_hold(small: FakeGpu, tmp_path: Path, capsys: Out) -> None:
    assert measure(tmp_path, "--minutes", "0.5") == 0
    assert "2 rows are left: call again" in capsys.readouterr().out
    assert not (tmp_path / "small.json").exists()


def test_a_row_that_is_tuned_is_not_tuned_again(
    small: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[str] = []
    plain = script.tune
    monkeypatch.setattr(script, "tune", lambda program, **more: tuned.append(program.name) or plain(program, **more))
    measure(tmp_path / "one")
    assert tuned == [s.kernel for s in SMALL]
    measure(tmp_path / "two")
    assert len(tuned) == 2
    measure(tmp_path / "three", "--budget", "0")
    assert len(tuned) == 2


def test_results_of_another_machine_are_not_mixed(small: FakeGpu, tmp_path: Path) -> None:
    measure(tmp_path)
    path = tmp_path / "small.json"
    path.write_text(path.read_text().replace('"driver": null', '"driver": "570"'))
    with pytest.raises(SystemExit, match="was measured with another driver"):
        measure(tmp_path)


def test_merging_and_showing(small: FakeGpu, tmp_path: Path, capsys: Out) -> None:
    measure(tmp_path)
    (tmp_path / "host.json").write_text(json.dumps({"microseconds": {"linear": {"planned call": 2.5}}}))
    target = tmp_path / "out" / "all.json"
    assert script.main(["merge", str(tmp_path), str(target)]) == 0
    assert "2 rows in" in capsys.readouterr().out
    about, rows = read(target)
    assert about["host"] == {"linear": {"planned call": 2.5}}
    assert [r.kernel for r in rows] == [s.kernel for s in SMALL]
    assert script.main(["show", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| linear (a·bᵀ) | 200×320×64 | – | – |"), "nothing to divide by without cuBLAS"


def test_the_recorded_results_are_shown(capsys: Out) -> None:
    assert script.main(["show", str(RECORDED)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    rows = json.loads(RECORDED.read_text())["rows"]
    assert len(lines) == len(rows)
    first = rows[0]
    kinds = ("ours_ms", "default_ms", "torch_compile_ms", "quack_ms", "liger_ms")
    ratios = [f"{first[k] / first['cublas_ms']:.3f}" if first[k] else "–" for k in kinds]
    rate = 2 * 4096**3 / first["ours_ms"] * 1e-9
    assert lines[0].startswith(f"| linear (a·bᵀ) | 4096×4096×4096 | {' | '.join(ratios)} | {rate:.0f} |")


def test_the_list_names_every_group(capsys: Out) -> None:
    assert script.main(["list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(GROUPS)


# -- host time, startup ------------------------------------------------------------------------------------------------


def test_host_time_of_each_way(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BATCH", 3)
    monkeypatch.setattr(host, "BATCHES", 2)
    program = fake.serve(coda.load(groups.PROGRAMS / "linear.coda")["linear"])
    found = dict(host.ways(program, "cupy", {"M": 16, "N": 64, "K": 64}, GpuStopwatch()))
    assert list(found) == [
        "eager call",
        "eager call into given arrays",
        "planned call",
        "plan bound to its arrays, and called",
    ]
    assert all(x > 0 for x in found.values())
    assert found["planned call"] < found["eager call"]


def test_maps_are_calls_whose_bytes_are_counted_once() -> None:
    for case in maps.CASES:
        program = coda.load(groups.PROGRAMS / f"{case.file}.coda")[case.kernel]
        assert isinstance(program, Program)
        assert maps.moved(case, program) > 0
    swiglu = next(c for c in maps.CASES if c.kernel == "swiglu_bwd_map")
    program = coda.load(groups.PROGRAMS / "swiglu_bwd_map.coda")["swiglu_bwd_map"]
    assert isinstance(program, Program)
    assert maps.moved(swiglu, program) == 5 * 2 * 16384 * 8192  # dy, z and dz of twice the width


def test_startup_is_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if device.available() is None:
        pytest.skip("with a GPU it makes calls")
    caches = []

    def run(command: list[str], *, env: dict[str, str], **more: Any) -> Any:
        caches.append(env["CODA_CACHE_DIR"])
        assert command[1:] == [startup.__file__, "linear", "linear"]
        return type("Done", (), {"stdout": json.dumps({"import_s": 0.1})})

    monkeypatch.setattr(startup.subprocess, "run", run)
    found = startup.cold_and_cached("linear", "linear")
    assert set(found) == {"cold", "cached"}
    assert found["cold"]["import_s"] == 0.1
    assert caches[0] == caches[1]
    assert not Path(caches[0]).exists()


# -- profiles ----------------------------------------------------------------------------------------------------------

NCU = """==PROF== Connected to process 4711 (/usr/bin/python3.11)
==PROF== Profiling "cutlass_coda_residual_rms" - 0: 0%....50%....100% - 12 passes
without cuBLAS: nothing
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","134,217,728"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","67,108,864"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","189,312"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum","","262,144"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum","","1,048,576"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum","","0"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","launch__registers_per_thread","register/thread","168"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed","%","71.44"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio","inst","3.51"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio","inst","0.42"
"0","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","inst","n/a"
"1","4711","python3.11","127.0.0.1","nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","170,528"
"2","4711","python3.11","127.0.0.1","cutlass_coda_residual_rms","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","999,999"
==PROF== Disconnected from process 4711
"""  # noqa: E501


def test_a_profile_is_parsed() -> None:
    found = ncu.parse(NCU)
    assert set(found) == {"cutlass_coda_residual_rms", "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT"}
    ours = found["cutlass_coda_residual_rms"]
    assert ours[ncu.TIME] == 189_312, "the first launch"
    assert ours[ncu.READ] == 2**27
    assert ncu.STALL.format("barrier") not in ours, "n/a"
    known = ncu.facts(ours, 100e6)
    assert known["seconds"] == pytest.approx(189.312e-6)
    assert known["dram_bytes"] == 3 * 2**26
    assert known["bank_conflicts"] == {"stores": 0.25}
    assert known["stalls"] == {"gmma": 3.51, "wait": 0.42}
    assert known["clock_hz"] is None
    text = "\n".join(ncu.lines("residual_rms", known))
    assert "time            189.3 µs at –" in text
    assert "tensor pipe     71.4 % of the time" in text
    assert "memory          201.3 MB moved, 2.01 times what is needed" in text
    assert "bank conflicts  0.25 for each wavefront of stores" in text
    assert "stalled warps   gmma 3.51, wait 0.42" in text
    assert "registers       168 a thread" in text
    other = ncu.lines("nvjet", ncu.facts(found["nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT"], None))
    assert "  memory          – moved" in other
    with pytest.raises(ValueError, match="no table"):
        ncu.parse("==ERROR== something\n")


class Ncu:
    """What is run in place of ncu, and what it prints."""

    def __init__(self, *outputs: str) -> None:
        self.outputs, self.commands = list(outputs), []  # type: ignore[var-annotated]

    def __call__(self, command: list[str], **more: Any) -> Any:
        self.commands.append(command)
        return type("Done", (), {"stdout": self.outputs.pop(0), "stderr": "", "returncode": 0})


def test_a_profile_from_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Out) -> None:
    unknown = "==ERROR== Failed to find metric sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active\n"
    runs = Ncu(unknown, NCU)
    monkeypatch.setattr(ncu.subprocess, "run", runs)
    monkeypatch.setattr(ncu.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(ncu, "describe", lambda: {"gpu": "H200"})
    path = tmp_path / "p.json"
    arguments = [str(groups.PROGRAMS / "residual_rms.coda"), "--dim", "M=4096,N=4096,K=4096", "--json", str(path)]
    assert ncu.main(arguments) == 0
    first, second = runs.commands
    assert first[:4] == ["ncu", "--clock-control", "none", "--csv"]
    assert first[-1] == "--launch"
    metrics = second[second.index("--metrics") + 1].split(",")
    assert set(ncu.METRICS) - set(metrics) == {"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"}
    assert "cutlass_coda_residual_rms\n  time " in capsys.readouterr().out
    data = json.loads(path.read_text())
    needed = data["kernels"]["cutlass_coda_residual_rms"]["needed_bytes"]
    assert needed == pytest.approx(5 * 2**25, rel=0.01), "two operands and a tile read, two tiles written"
    assert data["kernels"]["nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT"]["needed_bytes"] is None


@pytest.mark.parametrize(
    ("installed", "output", "message"),
    [
        (None, "", "was not found"),
        ("/usr/bin/ncu", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "may not read the GPU's"),
        ("/usr/bin/ncu", "no kernels were profiled", "ncu printed no table"),
    ],
)
def test_what_stands_in_the_way_of_a_profile(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, output: str, message: str
) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda name: installed)
    monkeypatch.setattr(ncu.subprocess, "run", Ncu(output))
    with pytest.raises(SystemExit, match=message):
        ncu.profile(["python", "x.py"])
