"""The table of codes: complete, and its examples give what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coda_lang
from coda_lang.codes import BESIDE, CODES
from coda_lang.errors import CodaError
from coda_lang.ir.check import check_file

PACKAGE = Path(coda_lang.__file__).parent
SHOWN = [code for code, entry in CODES.items() if entry.wrong is not None]


def codes_of(program: str, folder: Path) -> set[str]:
    for name, text in BESIDE.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "program.coda"
    path.write_text(program, encoding="utf-8")
    try:
        return {w.code for w in check_file(path).warnings}
    except CodaError as error:
        return {d.code for d in error.diagnostics}


def test_the_table_has_the_codes_that_the_sources_emit() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "codes.py"]
    emitted = {code for path in files for code in re.findall(r'"([EW]\d{4})"', path.read_text(encoding="utf-8"))}
    assert emitted == set(CODES)


def test_titles_differ_and_texts_are_sentences() -> None:
    assert len({entry.title for entry in CODES.values()}) == len(CODES)
    for entry in CODES.values():
        assert entry.text.endswith((".", ")"))
        assert (entry.wrong is None) == (entry.right is None)


@pytest.mark.parametrize("code", SHOWN)
def test_the_wrong_program_gives_the_code(code: str, tmp_path: Path) -> None:
    wrong = CODES[code].wrong
    assert wrong is not None
    assert codes_of(wrong, tmp_path) == {code}


@pytest.mark.parametrize("code", SHOWN)
def test_the_right_program_passes_without_a_warning(code: str, tmp_path: Path) -> None:
    right = CODES[code].right
    assert right is not None
    assert codes_of(right, tmp_path) == set()


def test_few_codes_have_no_example() -> None:
    assert set(CODES) - set(SHOWN) == {"E0001", "E0009", "E0115"}
