"""`coda-run tune`, `bench` and the tuned schedules of `coda-run cache`, on a GPU that stands in."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from harness_cli import PROGRAMS

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))

from standing_gpu import BEST, FakeGpu, fake, favour

import coda_lang as coda
from coda_lang.backend_cutlass import device
from coda_lang.bench import peers, run
from coda_lang.cli import main, progress
from coda_lang.errors import BackendError

__all__ = ["fake"]
Out = pytest.CaptureFixture[str]
LINEAR = str(PROGRAMS / "linear.coda")
SIZES = ("--dim", "M=200,N=320,K=64")


@pytest.fixture
def gpu(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The stand-in serves whatever program the command line loads."""
    fake.ms = favour(BEST)
    fake.serve(coda.load(LINEAR)["linear"])
    return fake


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(ordinal: int = 0) -> device.Device:
        raise BackendError("no GPU is visible", "check `nvidia-smi`")

    monkeypatch.setattr(device, "get", get)


def rows_of(out: str) -> list[list[str]]:
    """The cells of the first table."""
    lines = out.split("\n\n")[1].splitlines()
    return [re.split(r"  +", line.strip()) for line in lines]


# -- tune --------------------------------------------------------------------------------------------------------------


def test_tune(capsys: Out, gpu: FakeGpu) -> None:
    assert main(["tune", LINEAR, *SIZES, "--budget", "16", "--top", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # a bar is for terminals
    lines = captured.out.splitlines()
    assert lines[0] == "linear  M=200 N=320 K=64 T=bf16"
    assert re.fullmatch(r"Standing GPU, 17 schedules compiled and timed in \d+ s", lines[1])
    title, *rows = rows_of(captured.out)
    assert title == ["schedule", "time", "/ default", "by the model", "registers", "spills"]
    assert rows[0][-1] == "chosen"
    assert float(rows[0][2]) < 0.95
    assert sum(row[-1] == "the default" for row in rows) == 1, "shown though it is not among the first"
    assert len(rows) == 3
    assert "\nleft out: " in captured.out
    assert "take too many registers" in captured.out
    assert re.search(r"^not tried: \d+ that can be built", captured.out, re.M)
    assert re.search(r"^1\.\d+ times as fast as the default \(95 %: 1\.\d+ to 1\.\d+\)$", captured.out, re.M)
    assert re.search(r"^saved for products up to 208 × 320 × 64: /.*\.tuned$", captured.out, re.M)


def test_tune_all_lists_reasons(capsys: Out, gpu: FakeGpu) -> None:
    gpu.broken = lambda config: config.tile_m == 128
    assert main(["tune", LINEAR, *SIZES, "--budget", "12", "--top", "1", "--all", "--no-save"]) == 0
    out = capsys.readouterr().out
    _, *rows = rows_of(out)
    assert len(rows) == 13
    assert any("does not compile: ptxas: fatal" in row[-1] for row in rows)
    assert any("behind the best" in row[-1] for row in rows)
    assert re.search(r"^256x256,cooperative +960 +256 accumulator registers a thread", out, re.M)
    assert "nothing was saved" in out


def test_tune_json(capsys: Out, gpu: FakeGpu) -> None:
    assert main(["tune", LINEAR, *SIZES, "--dtype", "T=f16", "--budget", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["program"], found["gpu"]) == ("linear", "Standing GPU")
    assert (found["shape"], found["bucket"]) == ([200, 320, 64], [208, 320, 64])
    assert len(found["tried"]) == 9
    assert found["winner"] in [t["config"] for t in found["tried"]]
    assert found["tried"][0]["ratio"] <= 1
    assert found["rejected"]["registers"] > 0
    assert "rejected_members" not in found
    assert Path(found["saved"]).is_file()
    assert main(["tune", LINEAR, *SIZES, "--budget", "1", "--json", "--all"]) == 0
    assert json.loads(capsys.readouterr().out)["rejected_members"][0]["reason"]


def test_a_tuned_schedule_is_shown_used_and_removed(capsys: Out, gpu: FakeGpu) -> None:
    assert main(["tune", LINEAR, *SIZES, "--budget", "16", "--json"]) == 0
    winner = json.loads(capsys.readouterr().out)["winner"]
    assert main(["cache", "show"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^linear +bf16 +208×320×64 +{re.escape(winner)} +0\.\d+ +0 s +Standing GPU$", out, re.M)
    assert "0 kernels and 1 tuned schedule, " in out
    assert main(["cache", "clear"]) == 0
    assert "removed 0 kernels and 1 tuned schedule from " in capsys.readouterr().out
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out.startswith("0 kernels, 0 B in ")


def test_progress_is_a_bar_for_each_step(capsys: Out, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["tune", LINEAR, *SIZES, "--budget", "4", "--json"]) == 0
    err = capsys.readouterr().err
    assert all(f"{what} " in err for what in ("compiling", "checking", "timing"))
    assert err.endswith("\r\x1b[2K"), "nothing stays behind"


@pytest.mark.usefixtures("no_gpu")
def test_tune_without_a_gpu(capsys: Out) -> None:
    assert main(["tune", LINEAR, "--dim", "M=99999,N=99992,K=99992"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    text = "error: tuning needs a Hopper GPU: no GPU is visible\n  help: check `nvidia-smi`; --dry-run lists the "
    assert captured.err == text + "candidates by the model's time, without a GPU\n"


@pytest.mark.usefixtures("no_gpu")
def test_dry_run(capsys: Out) -> None:
    sizes = ("--dim", "M=4096,N=4096,K=4096")
    assert main(["tune", LINEAR, *sizes, "--dry-run", "--budget", "12"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("linear  M=4096 N=4096 K=4096 T=bf16\nnothing is compiled or run; ")
    title, *rows = rows_of(out)
    assert title == ["schedule", "by the model", "mainloop", "epilogue", "L2 fetch", "power", "waves"]
    assert len(rows) == 13
    assert (rows[0][0], rows[0][-1]) == ("128x256,cluster=2x1,cooperative,stages=4", "the default")
    times = [float(row[1].split()[0]) for row in rows[1:]]
    assert times == sorted(times)
    assert main(["tune", LINEAR, *sizes, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["candidates"]) == 25
    assert sum(c["default"] for c in found["candidates"]) == 1
    assert found["candidates"][0]["seconds"] == pytest.approx(174e-6, rel=0.05)  # as measured
    assert main(["tune", LINEAR, *sizes, "--dry-run", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["candidates"]) == found["space"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tune", str(PROGRAMS / "reduces.coda")], "is a reduce and has no schedule to tune"),
        (["tune", LINEAR, "--budget", "0"], "expected a number of at least 1, got `0`"),
        (["tune", LINEAR, "--dim", "Q=3", "--dry-run"], "no axis `Q`"),
        (["tune", LINEAR, "--outputs", "z", "--dry-run"], "no output `z`"),
        (["tune", LINEAR, "--config", "128x128"], "unrecognized arguments"),
        (["bench", LINEAR, "--peers", "cubals"], "`cubals` is nobody to measure beside"),
        (["bench", str(PROGRAMS / "reduces.coda"), "--config", "128x128"], "has no schedule to choose"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_wrong_calls(capsys: Out, arguments: list[str], text: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err


# -- bench -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> None:
    """cuBLAS takes 0.1 ms; the others are what they are here."""
    plain = peers.find

    def find(name: str, binding: Any, library: str, options: Any) -> peers.Peer:
        if name != "cublas":
            return plain(name, binding, library, options)

        def work() -> None:
            gpu.clock += 0.1

        return peers.Peer(lambda arguments: peers.Task(work))

    monkeypatch.setattr(run, "find", find)


@pytest.mark.usefixtures("cublas")
def test_bench(capsys: Out, tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    assert main(["bench", LINEAR, *SIZES, "--rounds", "3", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("linear  M=200 N=320 K=64 T=bf16\nStanding GPU, medians of 3 interleaved rounds")
    title, ours, cublas, *absent = rows_of(out)
    assert title == ["who", "time", "/ cuBLAS", "/ coda_lang", "TFLOP/s"]
    assert ours[0] == "coda_lang"
    assert ours[-1].startswith("64x32,cluster=1x1,pingpong")
    assert cublas[:3] == ["cuBLAS, the product alone", "100 µs", "1.000"]
    assert [a[0] for a in absent] == ["torch.compile", "QuACK", "Liger"]
    assert absent[0][-1] == "torch sees no GPU here"
    assert f"wrote {path}" in out
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["cublas_ms"], row["quack_ms"]) == (pytest.approx(0.1), None)
    assert len(row["samples"]["coda_lang"]) == 3
    assert main(["bench", LINEAR, *SIZES, "--rounds", "1", "--json", "-", "--peers", "cublas"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["absent"] == {}


@pytest.mark.usefixtures("cublas")
def test_bench_shows_what_tuning_gained(capsys: Out) -> None:
    assert main(["tune", LINEAR, *SIZES, "--budget", "16", "--json"]) == 0
    capsys.readouterr()
    assert main(["bench", LINEAR, *SIZES, "--rounds", "3", "--peers", "cublas"]) == 0
    _, ours, untuned, _ = rows_of(capsys.readouterr().out)
    assert untuned[0] == "coda_lang, untuned"
    assert float(untuned[3]) > 1.05 > float(ours[3])


@pytest.mark.usefixtures("cublas")
def test_bench_of_something_wrong_fails(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise run.WrongError("linear: `d` differs from quack's: relative error 0.5")

    monkeypatch.setattr(run, "_check", refuse)
    assert main(["bench", LINEAR, *SIZES, "--rounds", "1"]) == 1
    assert "`d` differs from quack's" in capsys.readouterr().err


@pytest.mark.usefixtures("no_gpu")
def test_bench_without_a_gpu(capsys: Out) -> None:
    assert main(["bench", LINEAR, "--dim", "M=99999"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: bench needs a Hopper GPU: no GPU is visible\n  help: check `nvidia-smi`\n"


@pytest.mark.usefixtures("no_gpu")
def test_a_plot_without_matplotlib_says_so_first(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_lang.bench.plot.find_spec", lambda name: None)
    assert main(["bench", LINEAR, "--plot", "x.svg"]) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_help_names_them(capsys: Out) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "coda-run tune FILE" in out
    assert "coda-run bench FILE" in out
