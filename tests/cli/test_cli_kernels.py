"""cuda, cubin, cache, and explain of a call."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness_cli import PROGRAMS, SWIGLU

import coda_lang as coda
from coda_lang.backend_cutlass import elf, toolchain
from coda_lang.cli import main, units
from coda_lang.errors import BackendError

Out = pytest.CaptureFixture[str]
REDUCES = str(PROGRAMS / "reduces.coda")
LINEAR = str(PROGRAMS / "linear.coda")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NVRTC and an empty cache."""
    try:
        toolchain.find()
    except BackendError as error:
        pytest.skip(error.message)
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def _fails(capsys: Out, *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    return captured.err


def test_cuda(capsys: Out) -> None:
    assert main(["cuda", SWIGLU]) == 0
    out = capsys.readouterr().out
    assert out == coda.load(SWIGLU)["swiglu"].gpu.emitted()[0].source
    assert main(["cuda", SWIGLU, "geglu", "--dtype", "T=f16", "--config", "64x64,pingpong,cluster=1x1"]) == 0
    out = capsys.readouterr().out
    assert "cutlass::half_t" in out
    assert "kTileM = 64, kTileN = 64" in out
    assert main(["cuda", LINEAR]) == 0
    assert "arg_bias" not in capsys.readouterr().out
    assert main(["cuda", LINEAR, "--inputs", "c,bias"]) == 0
    assert "arg_bias" in capsys.readouterr().out
    assert main(["cuda", str(PROGRAMS / "cross_entropy.coda"), "--outputs", "z"]) == 0
    assert "LogSumExp" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([LINEAR, "--config", "128x100"], "tile_n = 100"),
        ([LINEAR, "--config", "fast"], "`fast` is no part of a schedule: write a tile"),
        ([LINEAR, "--inputs", "a"], "no optional input `a`: the optional inputs are alpha, beta, bias, c"),
        ([LINEAR, "--outputs", "z"], "no output `z`"),
        ([LINEAR, "--dtype", "T=f32"], "`T` is bf16 or f16"),
        ([LINEAR, "--dtype", "T=f16", "--dtype", "T=bf16"], "given twice"),
        ([REDUCES, "--config", "128x128"], "a reduce and has no schedule to choose"),
        ([LINEAR, "gone"], "no kernel `gone`"),
    ],
)
def test_wrong_forms(capsys: Out, arguments: list[str], text: str) -> None:
    for command in ("cuda", "cubin"):
        assert text in _fails(capsys, command, *arguments)


@pytest.mark.parametrize("command", ["cuda", "cubin", "explain"])
def test_f8_operands(capsys: Out, command: str, tmp_path: Path) -> None:
    path = tmp_path / "f8.coda"
    path.write_text("kernel f8<M, N, K>(a: f8e4m3[M, K], b: f8e4m3[N, K]) -> (y: bf16[M, N]) { y <- a @ b.T }")
    message = _fails(capsys, command, str(path))
    assert message.endswith("help: pass bf16 or f16 operands, or run with --backend interp\n")


def test_another_architecture(capsys: Out) -> None:
    message = _fails(capsys, "cubin", REDUCES, "--arch", "sm_80")
    assert "'sm_80' is not supported" in message
    assert "supported: sm_90a" in message


def test_cubin_and_cache(capsys: Out, compiler: Path) -> None:
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out == f"0 kernels, 0 B in {compiler}/cache\n"
    target = compiler / "out" / "r.cubin"
    assert main(["cubin", REDUCES, "rstd_from_squares", "-o", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # progress is for terminals
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in captured.out.splitlines() if "  " in line)
    assert re.fullmatch(r"\d+ a thread at launch, 256 threads a block", lines["registers"])
    assert lines["spills"] == "none"
    assert "0 HGMMA" in captured.out
    assert re.search(r"\d+\.\d\d s to compile$", captured.out, re.MULTILINE)
    assert any(s.name == ".text.coda_rstd_from_squares" for s in elf.sections(target.read_bytes()))
    assert main(["cubin", REDUCES, "rstd_from_squares", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["cached"]
    assert again["cubin_bytes"] == target.stat().st_size
    assert main(["cache", "show"]) == 0
    lines_ = capsys.readouterr().out.splitlines()
    assert lines_[0].split() == ["kernel", "size", "age", "arch", "key"]
    assert lines_[1].startswith("rstd_from_squares ")
    assert " sm_90a " in lines_[1]
    assert lines_[3].startswith("1 kernel, ")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith(f"removed 1 kernel from {compiler}/cache, ")
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out.startswith("0 kernels")
    assert "invalid choice" in _fails(capsys, "cache", "burn")


def test_cubin_of_a_kernel_with_a_product(capsys: Out, compiler: Path) -> None:
    assert main(["cubin", SWIGLU]) == 0
    out = capsys.readouterr().out
    count = re.search(r"(\d+) HGMMA", out)
    assert count is not None
    assert int(count[1]) > 0
    report = coda.load(SWIGLU)["swiglu"].compile().report
    assert (re.search(r"^spills +none$", out, re.MULTILINE) is None) == (report.spill_store_bytes > 0)
    assert (re.search(r"^local memory +none$", out, re.MULTILINE) is None) == (report.stack_bytes > 0)
    assert re.search(rf"^registers +{report.registers} a thread", out, re.MULTILINE)
    assert main(["cubin", SWIGLU]) == 0
    assert "from the cache (compiled in " in capsys.readouterr().out
    assert main(["cache", "show"]) == 0
    assert "\nswiglu " in capsys.readouterr().out


def _explained(capsys: Out, *arguments: str) -> tuple[dict[str, str], list[str], str]:
    """The facts, the ways of the tensors, and all of it."""
    assert main(["explain", *arguments]) == 0
    out = capsys.readouterr().out
    head, tensors, *_ = out.split("\n\n", 1)[1].split("\n\n")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in head.splitlines() if not line.startswith(" "))
    return facts, tensors.splitlines()[1:], out


def test_explain_a_call(capsys: Out) -> None:
    sizes = ("--dim", "M=4096,N=4096", "--dim", "K=8192")
    config = "128x256,cluster=2x1,cooperative,stages=3,epilogue=64"
    facts, tensors, out = _explained(capsys, SWIGLU, *sizes, "--config", config)
    assert out.startswith("swiglu  M=4096 N=4096 K=8192 T=bf16\n")
    assert facts["schedule"].startswith("128x256,cluster=2x1,cooperative,stages=3")
    assert facts["schedule"].endswith(" (as asked)")
    assert facts["tiles"].startswith("32 × 16 = 512 of 128x256: 3.88 waves on 132 multiprocessors, which are 97% busy")
    assert "mainloop 3 × 48.0 KiB = 144.0 KiB" in facts["shared memory"]
    assert facts["arithmetic"].startswith("275 GFLOP in the product, ")
    assert facts["traffic"].startswith("128.0 MiB read and 48.0 MiB written")
    assert facts["least time"].startswith("278 µs on an H200: the product 278 µs, beside it the traffic 38.4 µs")
    assert "989 TFLOP/s" in out
    assert all(line.endswith("by TMA") for line in tensors)
    rows = [line.split() for line in out.split("\n\n")[-1].splitlines()]
    chosen = "128x256,cluster=2x1,cooperative,stages=3"
    assert [chosen, "512"] in [row[:2] for row in rows if row[-1] == "chosen"]
    assert sum(row[-1] == "chosen" for row in rows) == 1


def test_the_parts_of_shared_memory_add_up(capsys: Out) -> None:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for name, program in coda.load(path).items():
            if program.kind == "kernel":
                facts, _, _ = _explained(capsys, str(path), name)
                whole, rest = facts["shared memory"].split(" of ")
                parts = [float(part.split()[-2]) for part in rest.split(", ")[1:]]
                assert sum(parts) == pytest.approx(float(whole.split()[0]), abs=0.3), facts
                assert min(parts) > 0, facts


def test_explain_says_why_tensors_do_not_go_by_tma(capsys: Out) -> None:
    _, tensors, _ = _explained(capsys, LINEAR, "--inputs", "c,bias", "--dim", "M=131,N=130,K=37")
    ways = {line.split()[0]: line for line in tensors}
    assert "read by TMA, from a copy: its rows are 37 elements = 74 bytes apart" in ways["a"]
    assert "nearest larger: 40 elements" in ways["a"]
    assert "read by plain loads: its rows are 130 elements = 260 bytes apart" in ways["c"]
    assert "written by plain stores: its rows are 130 elements" in ways["d"]
    assert ways["bias"].endswith("read by plain loads")
    _, tensors, _ = _explained(capsys, str(PROGRAMS / "qk_norm.coda"), "qk_norm_rope_map")
    ways = {line.split()[0]: line for line in tensors}
    assert ways["cos"].endswith("plain loads of the rows that an index picks")
    _, tensors, _ = _explained(capsys, str(PROGRAMS / "residual_rms.coda"))
    assert next(t for t in tensors if t.startswith("sq ")).endswith("plain stores, one for each tile")


@pytest.mark.parametrize(("head", "spread"), [(64, True), (128, True), (96, False)])
def test_explain_says_how_tables_are_read(capsys: Out, head: int, spread: bool) -> None:
    _, tensors, _ = _explained(
        capsys, str(PROGRAMS / "rope.coda"), "rope_position", "--dim", f"M=2048,H=32,D={head},K=1024"
    )
    ways = {line.split()[0]: line for line in tensors}
    assert ways["b"].endswith("read by TMA, in the order of each thread's columns" if spread else "read by TMA")
    whole = "plain loads of the rows that an index picks"
    assert ways["cos"].endswith(whole if spread else f"{whole}, whose heads end within 64 columns")


def test_explain_says_how_a_map_moves_tiles(capsys: Out) -> None:
    for columns, way in ((1024, "plain loads of up to 16 bytes"), (1023, "plain loads: its rows are 1023 elements")):
        assert main(["explain", str(PROGRAMS / "rms_bwd_map.coda"), "--dim", f"M=1024,N={columns}"]) == 0
        tensors = capsys.readouterr().out.splitlines()
        assert f"read by {way}" in next(t for t in tensors if t.startswith("dh "))


def test_explain_says_why_schedules_do_not_fit(capsys: Out, tmp_path: Path) -> None:
    path = tmp_path / "wide.coda"
    path.write_text(
        "kernel wide<M, N, K>(a: bf16[M, K], b: bf16[N, K], c: f32[M, N], e: f32[M, N], f: f32[M, N], g: f32[M, N])\n"
        "    -> (z: f32[M, N]) {\n    z <- a @ b.T + c + e + f + g\n}\n",
        encoding="utf-8",
    )
    _, _, out = _explained(capsys, str(path))
    assert re.search(r"256x192,cooperative,epilogue=64 .* does not fit: \d+ bytes of shared memory, 232448 at", out)


def test_explain_shows_the_schedules_that_tuning_tries_first(capsys: Out) -> None:
    asked = [str(PROGRAMS / "residual_rms.coda"), "--dim", "M=4096,N=4096,K=4096"]
    _, _, explained = _explained(capsys, *asked)
    assert main(["tune", *asked, "--dry-run", "--budget", "12"]) == 0
    tried = [line.split()[0] for line in capsys.readouterr().out.splitlines() if re.match(r"\d+x\d+,", line)]
    shown = [line.split()[0] for line in explained.splitlines() if line.endswith((" fits", " chosen"))]
    assert len(tried) == 12 + 1
    assert len(set(tried) - set(shown)) <= 1  # of the default's own kind there may be another


def test_explain_makes_no_array(capsys: Out) -> None:
    facts, _, _ = _explained(capsys, LINEAR, "--dim", "M=1048576,N=1048576,K=65536")
    assert facts["arithmetic"].startswith("144 PFLOP")


def test_explain_every_program(capsys: Out) -> None:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for name in (n for n, program in coda.load(path).items() if program.kind != "block"):
            for sizes in ([], ["--dim", "M=0"]):
                facts, tensors, _ = _explained(capsys, str(path), name, *sizes)
                assert tensors
                assert facts["least time"]


def test_wrong_calls_of_explain(capsys: Out) -> None:
    assert "no axis `Q`" in _fails(capsys, "explain", LINEAR, "--dim", "Q=3")
    assert "no such file" in _fails(capsys, "explain", "gone.coda")
    assert "N must be even, got 7" in _fails(capsys, "explain", SWIGLU, "--dim", "N=7")
    assert "does not fit" in _fails(capsys, "explain", SWIGLU, "--config", "256x256")
    assert "no call to describe" in _fails(capsys, "explain", "E0101", "--dim", "M=3")


def test_units() -> None:
    assert [units.size(n) for n in (0, 1023, 1024, 3 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 GiB"]
    assert units.size(1 << 60) == "1048576.0 TiB"
    assert [units.scaled(x) for x in (0, 999, 1.374e11)] == ["0 ", "999 ", "137 G"]
    assert [units.seconds(x) for x in (2.0, 0.0123, 4.5e-6, 0.0)] == ["2 s", "12.3 ms", "4.5 µs", "0 ns"]
    assert [units.age(x) for x in (-1, 59, 3599, 3600, 200_000)] == ["0 s", "59 s", "59 min", "1 h", "2 d"]
