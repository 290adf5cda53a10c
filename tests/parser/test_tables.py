"""The grammar's tables are kept between processes, where nobody else can write, and whatever lies there is survived."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lang.folders import own_cache_root

PROGRAM = "from coda_lang.parser import parse; print(parse('fn f(x) = x + 1.0').definitions[0].name)"


def parsed(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "CODA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_tables_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert parsed(folder) == "f"
    assert (folder / "grammar.tables").stat().st_size > 1000
    assert parsed(folder) == "f"


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_damaged_tables_are_made_again(tmp_path: Path, damage: bytes | None) -> None:
    assert parsed(tmp_path) == "f"
    tables = tmp_path / "grammar.tables"
    whole = tables.read_bytes()
    tables.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert parsed(tmp_path) == "f"
    assert len(tables.read_bytes()) > 0.9 * len(whole)


def test_a_folder_that_others_write_to_is_not_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))
    assert own_cache_root() == tmp_path
    tmp_path.chmod(0o777)
    assert own_cache_root() is None
    assert parsed(tmp_path) == "f"
    assert not (tmp_path / "grammar.tables").exists()


def test_no_folder_at_all(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert parsed(blocked / "below") == "f"
