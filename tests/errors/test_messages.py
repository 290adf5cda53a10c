"""Golden messages: each case of `cases/*.txt` is a program and, beside it, every message that checking it gives.

A case is `=== title`, the program (`+++ name` begins another file beside it), `---` with the expected
`code line:column` of each diagnostic, and the rendered messages. `pytest --update-goldens` rewrites what follows
`---`; read the difference before committing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from coda_lang.codes import CODES
from coda_lang.errors import CodaError, Diagnostic, in_order, render
from coda_lang.ir.check import check_file

CASES = Path(__file__).parent / "cases"


@dataclass
class Case:
    title: str
    program: str
    places: str
    messages: str

    def text(self) -> str:
        return f"=== {self.title}\n{self.program}---{self.places}\n{self.messages}"


def read(path: Path) -> list[Case]:
    cases = []
    text = path.read_bytes().decode()  # as it is: some programs have Windows line ends
    for part in re.split(r"^=== ", text, flags=re.M)[1:]:
        title, rest = part.split("\n", 1)
        program, rest = re.split(r"^---", rest, maxsplit=1, flags=re.M)
        places, messages = rest.split("\n", 1)
        cases.append(Case(title, program, places, messages))
    return cases


def diagnostics(case: Case, folder: Path) -> list[Diagnostic]:
    main, *others = re.split(r"^\+\+\+ ", case.program, flags=re.M)
    for other in others:
        name, text = other.split("\n", 1)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    (folder / "case.coda").write_bytes(main.encode())
    try:
        return list(check_file("case.coda").warnings)
    except CodaError as error:
        found = error
    assert found.diagnostics == in_order(found.diagnostics)
    assert str(found) == render(found.diagnostics)
    return found.diagnostics


ALL = [
    pytest.param(path, i, id=f"{path.stem}: {case.title}")
    for path in sorted(CASES.glob("*.txt"))
    for i, case in enumerate(read(path))
]


@pytest.mark.parametrize(("path", "index"), ALL)
def test_messages(
    path: Path, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = read(path)
    case = cases[index]
    found = diagnostics(case, tmp_path)
    places = "".join(f" {d.code} {d.span.line}:{d.span.column}" for d in found)
    messages = render(found) + "\n\n"
    if request.config.getoption("--update-goldens"):
        case.places, case.messages = places, messages
        path.write_bytes("".join(c.text() for c in cases).encode())
    assert places == case.places
    assert messages.strip() == case.messages.strip()
    assert found, "a golden case gives a message"


def test_cases_are_many_and_different() -> None:
    titles = [f"{path.stem}: {case.title}" for path in CASES.glob("*.txt") for case in read(path)]
    assert len(titles) >= 100
    assert len(set(titles)) == len(titles)


def test_every_code_has_a_golden() -> None:
    shown = {
        code
        for path in CASES.glob("*.txt")
        for case in read(path)
        for code in re.findall(r"\b[EW]\d{4}\b", case.places)
    }
    # These need more than a text beside its message: tests/errors/test_hostile.py has them.
    assert set(CODES) - shown == {"E0001", "E0009", "E0115"}


def test_help_is_given_wherever_an_error_is() -> None:
    """Nearly every error says what to write instead; the exceptions are listed, so that a new one is thought about."""
    without = set()
    for path in CASES.glob("*.txt"):
        for case in read(path):
            for block in re.split(r"\n\n(?=\S)", case.messages.strip()):
                code = re.search(r"error\[(E\d{4})\]", block)
                if code and "  help: " not in block:
                    without.add(code[1])
    assert without <= {"E0002", "E0003"}
