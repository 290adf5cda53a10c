"""`--backend`, `--config` and `--compare`: what is chosen and shown.

A GPU stands in that computes with the interpreter: everything around the launch is real.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness_cli import PROGRAMS, SWIGLU

from coda_lang import arrays
from coda_lang.api import Program
from coda_lang.backend_cutlass import device, toolchain
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.report import Report
from coda_lang.cli import gpu, main
from coda_lang.cli.backend import Options
from coda_lang.errors import BackendError

Out = pytest.CaptureFixture[str]
REPORT = Report(168, 0, 0, 0, 1024, 200_000, 64, 90_000, "sm_90a", "13.0", (), False, 3.9, 3.9, 0.05, 0.01)
SMALL = ("--dim", "M=5,N=6,K=7")


class Stand:
    """A GPU that computes with the interpreter and adds `wrong` to the first element of output `z`."""

    def __init__(self) -> None:
        self.wrong, self.tap = 0.0, True
        self.asked: list[Options] = []

    def launch(self, program: Program, arguments: dict[str, Any], options: Options) -> gpu.Launched:
        self.asked.append(options)
        acc, config = None, None
        if program.ir.product is not None:
            config = Config.parse(options.config or "64x128,pingpong")
            acc = arguments["a"].astype(np.float32) @ arguments["b"].astype(np.float32).T
        tile = (config.tile_m, config.tile_n) if config else (64, 128)
        own = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
        out = dict(program.interpret(**own, tile=tile, acc=acc, outputs=options.outputs).items())
        if self.wrong:
            out["z"][0, 1] = float(out["z"][0, 1]) + self.wrong
        note = ("`a` is copied: its rows are 7 elements apart",)
        return gpu.Launched("Standing GPU", out, acc if self.tap else None, tile, config, REPORT, note, 2e-5)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()
    monkeypatch.setattr(device, "available", lambda: None)
    monkeypatch.setattr(device, "get", lambda ordinal=0: device.Device(ordinal, "Standing GPU", 132, 0))
    monkeypatch.setattr(toolchain, "find", lambda: None)
    monkeypatch.setattr(arrays, "library", lambda name: None)
    monkeypatch.setattr(gpu, "launch", made.launch)
    return made


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(ordinal: int = 0) -> device.Device:
        raise BackendError("no GPU is visible", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr(device, "get", get)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("option", ["--backend cuda", "--compare", "--config 128x128"])
def test_without_a_gpu_one_message(capsys: Out, option: str) -> None:
    assert main([SWIGLU, *option.split(), "--dim", "M=999999,N=999998,K=99999"]) == 2  # said before any data are drawn
    captured = capsys.readouterr()
    assert captured.out == ""
    asked = option.removesuffix(" 128x128")
    expected = f"error: {asked} needs a Hopper GPU: no GPU is visible\n"
    assert captured.err == expected + "  help: check `nvidia-smi` and CUDA_VISIBLE_DEVICES\n"


def test_helps_name_options(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(ordinal: int = 0) -> device.Device:
        raise BackendError("device 0 is a toaster", "use an H100, H200 or GH200, or NumPy arrays (the interpreter)")

    monkeypatch.setattr(device, "get", get)
    assert main([SWIGLU, *SMALL, "--backend", "cuda"]) == 2
    assert "help: use an H100, H200 or GH200, or run with --backend interp\n" in capsys.readouterr().err


@pytest.mark.usefixtures("no_gpu")
def test_auto_without_a_gpu_is_the_interpreter(capsys: Out) -> None:
    assert main([SWIGLU, *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1].startswith("interpreter, tiles of 128x256, ")


def test_auto_takes_the_gpu(capsys: Out, stand: Stand) -> None:
    assert main([SWIGLU, *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = "Standing GPU, schedule 64x128,cluster=2x1,pingpong,stages=4, tiles of 64x128, compiled in 4.0 s, 20 µs; "
    assert lines[1] == head + "a, b random with seed 0"
    assert lines[2] == "`a` is copied: its rows are 7 elements apart"
    assert lines[4].split() == ["output", "dtype", "shape", "min", "max", "mean", "NaN"]
    assert not stand.asked[0].compare


def test_auto_leaves_to_the_interpreter_what_only_it_does(capsys: Out, stand: Stand) -> None:
    for option in (["--exact"], ["--tile", "64x64"], ["--backend", "interp"]):
        assert main([SWIGLU, *SMALL, *option]) == 0
        assert "interpreter" in capsys.readouterr().out
    assert not stand.asked
    reduces = str(PROGRAMS / "reduces.coda")
    assert main([reduces, "rstd_from_squares", "--dim", "M=2,N=100", "--tile", "64x32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "cuda"  # its tile says how many partials there are
    assert found["inputs"][0]["shape"] == [2, 4]


def test_a_missing_package_does_not_go_unnoticed(capsys: Out, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise BackendError("NVRTC (libnvrtc.so.13) was not found", "pip install 'coda-lang[gpu]'")

    monkeypatch.setattr(toolchain, "find", find)
    assert main([SWIGLU, *SMALL]) == 0
    captured = capsys.readouterr()
    assert "warning: the GPU is not used: NVRTC (libnvrtc.so.13) was not found" in captured.err
    assert "interpreter" in captured.out
    assert not stand.asked


F8 = """kernel f8<M, N, K; T: bf16 | f8e4m3>(a: T[M, K], b: T[N, K]) -> (y: bf16[M, N]) { y <- a @ b.T }
kernel always<M, N, K>(a: f8e5m2[M, K], b: f8e5m2[N, K]) -> (y: bf16[M, N]) { y <- a @ b.T }
"""


def test_f8_operands_are_left_to_the_interpreter(capsys: Out, stand: Stand, tmp_path: Path) -> None:
    path = tmp_path / "f8.coda"
    path.write_text(F8)
    for arguments, name in ((["f8", "--dtype", "T=f8e4m3"], "f8e4m3"), (["always"], "f8e5m2")):
        assert main([str(path), *arguments, *SMALL]) == 0
        captured = capsys.readouterr()
        expected = f"warning: the GPU is not used: the product of {name} operands does not run on the GPU yet\n"
        assert captured.err == expected
        assert captured.out.splitlines()[1].startswith("interpreter, ")
        assert main([str(path), *arguments, *SMALL, "--backend", "interp"]) == 0
        assert capsys.readouterr().err == ""
        assert main([str(path), *arguments, *SMALL, "--backend", "cuda"]) == 2
        assert "help: write --backend interp, or pass bf16 or f16 operands" in capsys.readouterr().err
    assert not stand.asked
    assert main([str(path), "f8", *SMALL]) == 0
    assert len(stand.asked) == 1


def test_spills_are_remarked(capsys: Out, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    del stand
    monkeypatch.setitem(globals(), "REPORT", replace(REPORT, spill_store_bytes=80, spill_load_bytes=120))
    assert main([SWIGLU, *SMALL, "--config", "64x128,pingpong"]) == 0
    text = "registers spill: each thread stores 80 bytes of values to memory and loads 120; try the schedule 64x128,"
    assert capsys.readouterr().out.splitlines()[3].startswith(text)


def test_domains_are_checked_before_the_launch(capsys: Out, stand: Stand, tmp_path: Path) -> None:
    np.save(tmp_path / "rstd.npy", np.array([1, -1, 1, 1, 1], np.float32))
    file = str(PROGRAMS / "rmsnorm_swiglu.coda")
    arguments = [file, *SMALL, "--input", f"rstd={tmp_path}/rstd.npy"]
    assert main([*arguments, "--check-domains"]) == 2
    assert "outside its domain" in capsys.readouterr().err
    assert not stand.asked


def test_compare(capsys: Out, stand: Stand) -> None:
    assert main([SWIGLU, *SMALL, "--compare", "--config", "128x128"]) == 0
    assert stand.asked[0].compare
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "schedule 128x128,cluster=2x1,cooperative,stages=4, tiles of 128x128" in lines[1]
    assert re.split(r"  +", lines[4]) == ["output", "dtype", "shape", "largest error", "nearest to its bound", "share"]
    assert all(float(line.split("%")[0].split()[-1]) <= 100 for line in lines[5:7])
    assert lines[5].startswith("z ")
    assert lines[5].endswith("equal to the bit")
    assert lines[6].startswith("y ")
    assert lines[6].endswith("within the bound")  # its sigmoid need not be the same to the bit
    assert out.endswith("Equal to the bit: to the interpreter, given the GPU's accumulator.\n")


def test_compare_without_room_for_the_accumulator(capsys: Out, stand: Stand) -> None:
    stand.tap = False
    assert main([SWIGLU, *SMALL, "--compare"]) == 0
    out = capsys.readouterr().out
    assert out.count("within the bound") == 2
    assert "accumulator" not in out


def test_compare_of_what_has_no_product(capsys: Out, stand: Stand) -> None:
    assert main([str(PROGRAMS / "qk_norm.coda"), "qk_norm_rope_map", "--compare", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["compare"]
    assert line["to_the_bit"]
    assert line["ok"]
    assert not line["tapped"]
    assert main([str(PROGRAMS / "act_bwd_map.coda"), "--compare"]) == 0


def test_compare_finds_what_is_outside(capsys: Out, stand: Stand) -> None:
    stand.wrong = 1.0
    assert main([SWIGLU, *SMALL, "--compare"]) == 1
    assert "WRONG: 1 of 30 elements, first at [0, 1]" in capsys.readouterr().out
    stand.wrong = float("nan")
    assert main([SWIGLU, *SMALL, "--compare", "--json"]) == 1
    z, y = json.loads(capsys.readouterr().out)["compare"]
    assert (z["ok"], z["wrong"], z["first_wrong"]) == (False, 1, [0, 1])
    assert y["ok"]


def test_compare_finds_a_wrong_bit_within_the_bound(capsys: Out, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(program: Program, arguments: dict[str, Any], options: Options) -> gpu.Launched:
        done = stand.launch(program, arguments, options)
        z = done.outputs["z"]
        z[...] = np.nextafter(z, ml_dtypes.bfloat16(np.inf))
        return done

    monkeypatch.setattr(gpu, "launch", launch)
    arguments = [SWIGLU, *SMALL, "--compare", "--outputs", "z", "--json"]
    assert main(arguments) == 1
    (z,) = json.loads(capsys.readouterr().out)["compare"]
    assert z["wrong"] == z["elements"] == 30


def test_json_names_the_schedule_and_the_report(capsys: Out, stand: Stand) -> None:
    assert main([SWIGLU, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["backend"], found["gpu"]) == ("cuda", "Standing GPU")
    assert found["config"] == "64x128,cluster=2x1,pingpong,stages=4"
    assert found["tile"] == [64, 128]
    assert found["report"]["registers"] == 168
    assert "compare" not in found


@pytest.mark.gpu
def test_compare_on_a_gpu(capsys: Out) -> None:
    for file in ("rmsnorm_swiglu", "residual_rms", "cross_entropy", "qk_norm", "quantize", "reduces", "linear_dw"):
        for sizes in ([], ["--dim", "M=131,N=130"]):
            code = main([str(PROGRAMS / f"{file}.coda"), "--compare", *sizes])
            captured = capsys.readouterr()
            if code == 2 and sizes:
                continue  # an extent that the signature does not allow
            assert code == 0, captured.out + captured.err
            assert "bound" in captured.out
