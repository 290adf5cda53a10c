"""`coda-run FILE [KERNEL]`: choosing, data, files, results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from harness_cli import GOOD, PROGRAMS, SWIGLU

import coda_lang as coda
from coda_lang.cli import main
from coda_lang.data import draw

Out = pytest.CaptureFixture[str]


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.coda"
    path.write_text(GOOD, encoding="utf-8")
    return str(path)


def _json(capsys: Out, *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def _fails(capsys: Out, *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_the_table(capsys: Out) -> None:
    assert main([SWIGLU, "--dim", "M=8", "--dim", "N=16,K=32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "swiglu  M=8 N=16 K=32  T=bf16"
    assert lines[1].startswith("interpreter, tiles of 128x256, ")
    assert lines[1].endswith("a, b random with seed 0")
    assert lines[3].split() == ["output", "dtype", "shape", "min", "max", "mean", "NaN"]
    assert lines[4].split()[:4] == ["z", "bf16", "[8,", "16]"]
    assert len({len(line) for line in lines[3:]}) == 1
    assert all("\x1b" not in line and line == line.rstrip() for line in lines)


def test_the_numbers_are_those_of_the_interpreter(capsys: Out) -> None:
    found = _json(capsys, SWIGLU, "geglu", "--dim", "M=5,N=6,K=7", "--dtype", "T=f16", "--seed", "3", "--tile", "16x24")
    program = coda.load(SWIGLU)["geglu"]
    drawn = draw(program.ir, seed=3, sizes={"M": 5, "N": 6, "K": 7}, dtypes={"T": "f16"})
    out = program.interpret(**drawn.arguments, tile=(16, 24))
    assert found["kernel"] == "geglu"
    assert found["sizes"] == {"M": 5, "N": 6, "K": 7}
    assert found["dtypes"] == {"T": "f16"}
    z, y = found["outputs"]  # type: ignore[misc]
    assert (z["min"], z["max"]) == (out.z.min().item(), out.z.max().item())
    assert y["shape"] == [5, 3]
    assert y["mean"] == pytest.approx(out.y.astype(np.float64).mean())
    assert y["nan"] == 0


def test_main_kernel_and_others(capsys: Out, good: str) -> None:
    assert _json(capsys, good)["kernel"] == "good"
    assert _json(capsys, good, "total")["kernel"] == "total"
    assert _json(capsys, str(PROGRAMS / "linear_act.coda"))["kernel"] == "linear_relu"  # none has the file's name
    imported = _json(capsys, str(PROGRAMS / "residual_rms.coda"), "rstd_from_squares")
    assert imported["kernel"] == "rstd_from_squares"
    assert _json(capsys, f"{PROGRAMS}/./rope.coda")["kernel"] == "rope"
    assert "it has good, total" in _fails(capsys, good, "gone")
    assert "did you mean `total`?" in _fails(capsys, good, "totl")
    assert "defines no kernel" in _fails(capsys, str(PROGRAMS / "act.coda"))


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.coda")), ids=lambda p: p.stem)
def test_every_kernel_runs_on_default_data(path: Path) -> None:
    for program in coda.load(path).values():
        drawn = draw(program.ir, optional=[p.name for p in program.ir.params if p.default is not None])
        out = program.interpret(**drawn.arguments, check=True, outputs=[o.name for o in program.ir.outputs])
        assert all(x.size for x in out)


def test_options_of_the_run(capsys: Out, good: str) -> None:
    whole = _json(capsys, good, "--scalar", "scale=2", "--outputs", "y,z")
    assert [o["name"] for o in whole["outputs"]] == ["z", "y"]  # type: ignore[attr-defined]
    assert {"name": "scale", "dtype": "f32", "source": "given", "value": 2.0} in whole["inputs"]  # type: ignore[operator]
    exact = _json(capsys, good, "--exact", "--scalar", "scale=0.1", "--check-domains")
    assert exact["exact"] is True
    partial = str(PROGRAMS / "residual_rms.coda")
    tiles = _json(capsys, partial, "--tile", "64x32", "--dim", "M=4,N=100,K=8")["outputs"]
    assert next(o for o in tiles if o["name"] == "sq")["shape"] == [4, 4]  # type: ignore[attr-defined]


def test_optional_inputs_are_drawn_on_request(capsys: Out, good: str) -> None:
    assert "bias" not in str(_json(capsys, good)["inputs"])
    assert "'name': 'bias'" in str(_json(capsys, good, "--input", "bias=random")["inputs"])


def test_out_writes_loadable_files(capsys: Out, good: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    found = _json(capsys, good, "--out", str(folder), "--outputs", "z,y", "--dim", "M=3,N=4,K=5")
    assert sorted(p.name for p in folder.iterdir()) == ["y.npy", "z.npy"]
    z = np.load(folder / "z.npy")
    assert z.dtype == np.float32
    assert z.shape == (3, 4)
    assert z.max() == found["outputs"][0]["max"]  # type: ignore[index]
    assert found["outputs"][0]["file"] == str(folder / "z.npy")  # type: ignore[index]


def test_out_leaves_nothing_half_written(capsys: Out, good: str, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "y.npy").mkdir()  # the second rename fails
    (folder / "z.npy").write_bytes(b"old")
    assert main([good, "--out", str(folder), "--outputs", "z,y"]) == 2
    assert sorted(p.name for p in folder.iterdir()) == ["y.npy", "z.npy"]
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    assert "file: File exists" in _fails(capsys, good, "--out", str(tmp_path / "file"))


def test_inputs_from_files(capsys: Out, good: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 4, (3, 5)).astype(np.float32)
    b = rng.integers(-4, 4, (4, 5)).astype(np.float64)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "w.npz", b=b, other=b + 1)
    arguments = [good, "--input", f"a={tmp_path}/a.npy", "--scalar", "scale=1", "--out", str(tmp_path)]
    assert main([*arguments, "--input", f"b={tmp_path}/w.npz"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), a @ b.T)
    assert main([*arguments, "--input", f"b={tmp_path}/w.npz:other"]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), a @ (b + 1).T)
    capsys.readouterr()
    assert "it has b, other" in _fails(capsys, *arguments, "--input", f"b={tmp_path}/w.npz:none")


def test_a_file_binds_the_element_type(capsys: Out, good: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 3), 0.1, np.float16))
    assert _json(capsys, good, "--input", f"a={tmp_path}/a.npy")["dtypes"] == {"T": "f16"}
    np.save(tmp_path / "b.npy", np.full((2, 3), 0.1).astype(ml_dtypes.bfloat16))  # raw bits to NumPy
    assert _json(capsys, good, "--input", f"b={tmp_path}/b.npy")["dtypes"] == {"T": "bf16"}


def test_values_are_only_rounded_on_request(capsys: Out, good: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((2, 3), 0.1, np.float32))
    message = _fails(capsys, good, "--input", f"a={tmp_path}/a.npy")
    assert "`a` must be bf16" in message
    assert "help: --cast rounds them; T may also be f16\n" in message
    np.save(tmp_path / "a.npy", np.full((2, 3), 1 + 2**-10, np.float32))
    message = _fails(capsys, good, "--input", f"a={tmp_path}/a.npy")
    assert "help: --dtype T=f16 holds them exactly; --cast rounds them\n" in message
    assert main([good, "--input", f"a={tmp_path}/a.npy", "--dtype", "T=f16"]) == 0
    capsys.readouterr()
    assert "help: --cast rounds them\n" in _fails(capsys, good, "--input", f"a={tmp_path}/a.npy", "--dtype", "T=bf16")
    assert main([good, "--input", f"a={tmp_path}/a.npy", "--cast"]) == 0
    np.save(tmp_path / "i.npy", np.ones((2, 3), np.int64))
    capsys.readouterr()
    assert "holds int64" in _fails(capsys, good, "--input", f"a={tmp_path}/i.npy", "--cast")


def test_wrong_files(capsys: Out, good: str, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("not an array")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    for name in ("text.npy", "objects.npy", "cut.npz", "gone.npy", ""):
        assert "cannot read" in _fails(capsys, good, "--input", f"a={tmp_path / name}")


def test_shapes_that_contradict(capsys: Out, good: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3), np.float16))
    np.save(tmp_path / "b.npy", np.ones((4, 5), np.float16))
    message = _fails(capsys, good, "--input", f"a={tmp_path}/a.npy", "--input", f"b={tmp_path}/b.npy")
    assert "K is 3 by `a`" in message
    assert "M is 9 by the call" in _fails(capsys, good, "--input", f"a={tmp_path}/a.npy", "--dim", "M=9")
    assert "must have 2 dimensions" in _fails(capsys, str(PROGRAMS / "rope.coda"), "--input", _vector(tmp_path))


def _vector(folder: Path) -> str:
    np.save(folder / "v.npy", np.ones(4, np.float32))
    return f"cos={folder}/v.npy"


RSTD = (str(PROGRAMS / "residual_rms.coda"), "rstd_from_squares", "--scalar", "eps=0")


def test_a_length_that_no_file_fixes_is_not_guessed(capsys: Out, tmp_path: Path) -> None:
    np.save(tmp_path / "sq.npy", np.full((37, 3), 100, np.float32))
    sq = ("--input", f"sq={tmp_path}/sq.npy")
    message = _fails(capsys, *RSTD, *sq)
    assert message == "error: no file fixes axis N of rstd_from_squares\n  help: write --dim N=…\n"
    (out,) = _json(capsys, *RSTD, *sq, "--dim", "N=300")["outputs"]  # type: ignore[misc]
    assert (out["min"], out["max"], out["shape"]) == (1.0, 1.0, [37])
    assert _json(capsys, *RSTD)["sizes"] == {"M": 256, "N": 512}  # all is random: any length will do
    np.save(tmp_path / "x.npy", np.ones((3, 256)).astype(np.float16))
    heads = str(PROGRAMS / "qk_norm.coda")
    np.save(tmp_path / "b.npy", np.ones((256, 8)).astype(np.float16))
    message = _fails(capsys, heads, "--input", f"b={tmp_path}/b.npy", "--dtype", "T=f16", "--cast")
    assert "no file fixes axis" in message
    assert "H * D" in message


def test_lengths_that_do_not_matter_are_not_shown(capsys: Out, tmp_path: Path) -> None:
    np.save(tmp_path / "lse.npy", np.zeros((37, 3), np.float32))
    arguments = (str(PROGRAMS / "cross_entropy.coda"), "lse_from_partials", "--input", f"lse={tmp_path}/lse.npy")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lse_from_partials", "M=37"]
    assert re.fullmatch(r"interpreter, \S+ .?s", lines[1])
    assert main(arguments[:2]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lse_from_partials", "M=256", "N=512"]
    assert lines[1].endswith("; lse random with seed 0, partials of tiles of 128x256")


def test_infinities_and_nan_in_json(capsys: Out, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.inf, 1], [2, 3], [np.nan, 0]], np.float32))
    path = tmp_path / "r.coda"
    path.write_text(GOOD, encoding="utf-8")
    (found,) = _json(capsys, str(path), "total", "--input", f"x={tmp_path}/x.npy")["outputs"]  # type: ignore[misc]
    assert (found["min"], found["max"], found["mean"], found["nan"]) == (5.0, "inf", "inf", 1)
    assert main([str(path), "total", "--dim", "M=0"]) == 0
    assert capsys.readouterr().out.split()[-4:] == ["–", "–", "–", "0"]
    assert main([str(path), "--scalar", "scale=nan", "--json"]) == 0
    assert "NaN" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--dim", "M"], "expected NAME=VALUE"),
        (["--dim", "M=x"], "whole number"),
        (["--dim", "M=-3"], "whole number"),
        (["--dim", "Q=3"], "has no axis `Q`"),
        (["--dim", "M=1", "--dim", "M=2"], "given twice"),
        (["--dim", "N=7", "--outputs", "y"], "N must be even, got 7"),
        (["--dim", "scale=7"], "write --scalar scale="),
        (["--dim", "M=999999999,K=999999999"], "choose smaller axes"),
        (["--dtype", "T=f64"], "T is bf16 or f16, got f64"),
        (["--dtype", "S=f16"], "no dtype parameter `S`"),
        (["--scalar", "scale=big"], "got `big`"),
        (["--scalar", "a=3"], "write --input a="),
        (["--scalar", "scal=3"], "did you mean `scale`?"),
        (["--scalar", "M=3"], "write --dim M="),
        (["--input", "c=random"], "has no input `c`"),
        (["--outputs", "q"], "no output `q`"),
        (["--outputs", ","], "expected names of outputs"),
        (["--tile", "128"], "ROWSxCOLUMNS"),
        (["--tile", "8x3"], "even number of columns"),
        (["--tile", "0x2"], "at least one row"),
        (["--seed", "-1"], "whole number"),
        (["--backend", "interp", "--compare"], "--compare is for the GPU"),
        (["--backend", "interp", "--config", "128x128"], "--config is for the GPU"),
        (["--backend", "cuda", "--tile", "64x64"], "write --config 128x256"),
        (["--compare", "--exact"], "--exact is for the interpreter, --compare for the GPU"),
        (["--backend", "tpu"], "invalid choice"),
        (["--frobnicate"], "unrecognized arguments"),
    ],
)
def test_wrong_calls(capsys: Out, good: str, arguments: list[str], text: str) -> None:
    assert text in _fails(capsys, good, *arguments)


def test_a_split_that_does_not_divide(capsys: Out) -> None:
    heads = str(PROGRAMS / "qk_norm.coda")
    message = _fails(capsys, heads, "--dim", "N=96", "--dim", "H=5")
    assert message == "error: qk_norm: N must be a multiple of H = 5, got 96 (N = H * D)\n"
    assert "N must be a multiple of D = 0, got 96" in _fails(capsys, heads, "--dim", "N=96,D=0")
    assert "N = H * D does not hold: 96 is not 5 * 7" in _fails(capsys, heads, "--dim", "N=96,H=5,D=7")


def test_check_domains(capsys: Out, good: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, -1]], np.float32))
    arguments = [good, "total", "--input", f"x={tmp_path}/x.npy"]
    assert main(arguments) == 0
    capsys.readouterr()
    assert "outside its domain" in _fails(capsys, *arguments, "--check-domains")
