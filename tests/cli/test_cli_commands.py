"""check, fmt, ir, list, explain."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from harness_cli import GOOD, PROGRAMS, SWIGLU, WRONG, coda_run

from coda_lang.cli import main
from coda_lang.codes import CODES
from coda_lang.parser.format import format_text

Out = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.coda").write_text(format_text(GOOD), encoding="utf-8")
    (tmp_path / "wrong.coda").write_text(WRONG, encoding="utf-8")
    (tmp_path / "bytes.coda").write_bytes(b"// \xff\n")
    (tmp_path / "user.coda").write_text('import "wrong.coda" { wrong }\n', encoding="utf-8")
    return tmp_path


def test_check(capsys: Out, files: Path) -> None:
    assert main(["check", f"{files}/good.coda"]) == 0
    assert capsys.readouterr().out == "1 file checked: no errors\n"
    assert main(["check", f"{files}/wrong.coda", f"{files}/good.coda", f"{files}/user.coda"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error[E0101]") == 1  # not again for the file that imports it
    assert "wrong.coda:2:20: error[E0101]" in captured.err
    assert captured.out == "3 files checked: 1 error\n"


def test_check_goes_on_after_a_file_it_cannot_read(capsys: Out, files: Path) -> None:
    assert main(["check", f"{files}/gone.coda", f"{files}/wrong.coda", f"{files}/bytes.coda", str(files)]) == 2
    captured = capsys.readouterr()
    assert "gone.coda: no such file or directory" in captured.err
    assert "byte 0xff is not UTF-8" in captured.err
    assert f"{files}: is a directory" in captured.err
    assert "error[E0101]" in captured.err


def test_check_of_nothing_finds_nothing_good(capsys: Out, files: Path) -> None:
    assert main(["check", f"{files}/gone.coda"]) == 2
    assert capsys.readouterr().out == ""


def test_check_json(capsys: Out, files: Path) -> None:
    assert main(["check", "--json", f"{files}/wrong.coda"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["code"], found["line"], found["column"], found["end_column"]) == ("E0101", 2, 20, 27)
    assert found["severity"] == "error"


def test_a_wrong_program_is_not_run(capsys: Out, files: Path) -> None:
    for command in ([], ["ir"]):
        assert main([*command, f"{files}/wrong.coda"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "wrong.coda:2:20: error[E0101]" in captured.err


def test_fmt_in_place(capsys: Out, files: Path) -> None:
    path = files / "messy.coda"
    path.write_text("const  A=1 // one\n", encoding="utf-8")
    path.chmod(0o640)
    link = files / "link.coda"
    link.symlink_to(path)
    before = format_text(GOOD)
    assert main(["fmt", "--check", str(link), f"{files}/good.coda"]) == 1
    assert capsys.readouterr().out == f"would change {link}\n"
    assert main(["fmt", "--diff", str(link)]) == 1
    diff = capsys.readouterr().out
    assert "-const  A=1 // one" in diff
    assert "+const A = 1  // one" in diff
    assert path.read_text(encoding="utf-8") == "const  A=1 // one\n"
    assert main(["fmt", str(link), f"{files}/good.coda"]) == 0
    assert capsys.readouterr().out == f"formatted {link}\n"
    assert path.read_text(encoding="utf-8") == "const A = 1  // one\n"
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert (files / "good.coda").read_text(encoding="utf-8") == before
    assert main(["fmt", "--check", str(link)]) == 0
    assert not [p for p in os.listdir(files) if p.startswith(".")]


def test_fmt_leaves_what_it_cannot_parse(capsys: Out, files: Path) -> None:
    path = files / "broken.coda"
    path.write_text("const A = \n", encoding="utf-8")
    assert main(["fmt", str(path), f"{files}/gone.coda"]) == 2
    assert path.read_text(encoding="utf-8") == "const A = \n"
    assert main(["fmt", str(path)]) == 1
    assert "error[E0003]" in capsys.readouterr().err


def test_fmt_keeps_line_ends(files: Path) -> None:
    path = files / "dos.coda"
    path.write_bytes(b'"""a\r\nb"""\r\nfn f( x )=x // c\r\n')
    assert main(["fmt", str(path)]) == 0
    assert path.read_bytes() == b'"""a\r\nb"""\r\nfn f(x) = x  // c\r\n'


def test_fmt_of_standard_input() -> None:
    done = coda_run("fmt", "-", input="const  é=1 // ü\n".encode(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.decode()) == (0, "const é = 1  // ü\n")


def test_programs_are_canonical(capsys: Out) -> None:
    assert main(["fmt", "--check", *map(str, sorted(PROGRAMS.glob("*.coda")))]) == 0, capsys.readouterr().out


def test_ir(capsys: Out) -> None:
    assert main(["ir", str(PROGRAMS / "rmsnorm_swiglu.coda")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("kernel rmsnorm_swiglu<M, N, K; T: bf16 | f16>  // ")
    lines = [line.split() for line in out.splitlines()]
    assert ["product", "a", "@", "b.T", "over", "K"] in lines
    assert ["%1", "=", "load", "rstd", "f32[M]", "vectors", "line", "18"] in lines
    assert ["z", "<-", "%2"] in lines
    assert main(["ir", str(PROGRAMS / "qk_norm.coda"), "qk_norm_rope_map"]) == 0
    out = capsys.readouterr().out
    assert "map qk_norm_rope_map<M, N = H * D, P; T: bf16 | f16, I: i32 | i64>" in out
    assert "gather cos[%" in out
    assert "position  I[M] in 0..P" in out
    capsys.readouterr()
    assert main(["ir", str(PROGRAMS / "linear_act.coda"), "linear_silu"]) == 0
    assert "f32[N] = -0.0\n" in capsys.readouterr().out
    assert main(["ir", str(PROGRAMS / "act.coda")]) == 2


def test_every_kernel_has_a_textual_form(capsys: Out) -> None:
    for path in sorted(PROGRAMS.glob("*.coda")):
        main(["ir", str(path)])
        captured = capsys.readouterr()
        assert "object at" not in captured.out


def test_list(capsys: Out, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["list", SWIGLU]) == 0
    out = capsys.readouterr().out
    assert "  kernel swiglu<M, N, K; T: bf16 | f16>(a: T[M, K], b: T[N, K], bias: f32[N] = -0.0) -> (z: T[M, N]" in out
    assert "      y = g·σ(g)·u" in out
    assert "  imported swish" in out
    monkeypatch.chdir(files)
    (files / "bytes.coda").unlink()
    assert main(["list", "--json"]) == 0
    found = {entry["path"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert sorted(found) == ["good.coda", "user.coda", "wrong.coda"]
    assert [o["name"] for o in found["good.coda"]["offers"]] == ["good", "total"]
    assert found["user.coda"]["imports"] == ["wrong"]
    monkeypatch.chdir(files.parent / "..")
    empty = files / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert main(["list"]) == 2


def test_explain(capsys: Out) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name}  {code.title}\n" in listed for name, code in CODES.items())
    for name, code in CODES.items():
        assert main(["explain", name.lower()]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{name}: {code.title}")
    assert main(["explain", "e305"]) == 0
    assert capsys.readouterr().out.startswith("E0305: ")
    assert main(["explain", "E9999"]) == 2
    assert "there is no error code E9999" in capsys.readouterr().err
