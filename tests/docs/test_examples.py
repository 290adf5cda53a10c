"""What the pages show is what happens: programs are right and formatted, Python runs, commands print what is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from coda_lang.backend_cutlass import device, toolchain
from coda_lang.cli import main
from coda_lang.errors import BackendError
from coda_lang.ir.check import check_text
from coda_lang.parser.format import format_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
Out = pytest.CaptureFixture[str]
WRONG = """kernel wrong<M, N, K>(a: bf16[M, K], b: bf16[N, K], w: f32[K], rstd: f32[M]) -> (y: bf16[M, N], q: f32[M]) {
    h = a @ b.T
    s = h * rstdd
    y <- silu(h) * w
    total = tile_sum(h, over=N)
    q <- total * 2.0
}
"""


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of this kind."""
    found = re.findall(r"^```([^`\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return [text for what, text in found if what == kind]


PROGRAMS = [pytest.param(b, id=f"{p.name}-{i}") for p in PAGES for i, b in enumerate(blocks(p, "coda"))]
COMMANDS = [
    pytest.param(b, id=f"{p.name}-{i}")
    for p in PAGES
    for i, b in enumerate(blocks(p, ""))
    if re.match(r"\$ (pip install \. && )?coda-run (?!check)", b) and len(b.splitlines()) > 2
]


def test_there_are_examples() -> None:
    assert len(PROGRAMS) >= 3
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs(text: str) -> None:
    assert format_text(text) == text
    module = check_text(text, str(ROOT / "programs" / "example.coda"))
    assert module.programs
    assert not module.warnings


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    code = blocks(ROOT / page, "python")
    assert code
    for block in code:
        exec(block, names)
    assert names["out"].z.shape == (len(names["out"].z), 512)


def test_python_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        toolchain.find()
    except BackendError as error:
        pytest.skip(error.message)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for block in [blocks(ROOT / "docs/python.md", "python")[0], *blocks(ROOT / "docs/python.md", "python nvrtc")]:
        exec(block, names)
    assert names["done"].report.registers > 0


def masked(text: str) -> list[str]:
    """Lines without the times."""
    return [re.sub(r"[\d.]+ (ms|µs|s)\b", "… s", line) for line in text.strip().splitlines()]


@pytest.mark.parametrize("shown", COMMANDS)
def test_commands(shown: str, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(device, "available", lambda: "hidden by the tests")
    command, rest = shown.split("\n", 1)
    assert main(shlex.split(command.split("coda-run ", 1)[1])) == 0
    lines, found = masked(rest), masked(capsys.readouterr().out)
    if lines[-1] == "…":
        lines = lines[:-1]
        found = found[: len(lines)]
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in found]


def test_the_messages_of_the_first_page(capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (shown,) = (b for b in blocks(ROOT / "README.md", "") if b.startswith("$ coda-run check"))
    (tmp_path / "wrong.coda").write_text(WRONG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "wrong.coda"]) == 1
    found = capsys.readouterr()
    assert (found.err + found.out).startswith(shown.split("\n", 1)[1])
