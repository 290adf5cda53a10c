"""The page of the programs: whole tables, and every kernel, map, reduce and block of every file."""

from __future__ import annotations

import re
from pathlib import Path

import coda_lang as coda

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]


def cells(row: str) -> int:
    return len(re.split(r"(?<!\\)\|", row.strip()[1:-1]))


def test_tables_are_whole() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), page.read_text(encoding="utf-8"), flags=re.S)
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if not re.fullmatch(r"\|[\s:|-]*-[\s:|-]*\|", line.strip()) or number == 0:
                continue
            wanted = cells(lines[number - 1])
            rows = lines[number:]
            for offset, row in enumerate(rows):
                if not row.startswith("|"):
                    break
                assert cells(row) == wanted, f"{page.name}:{number + offset + 1}: {row[:80]}"


def test_every_program_is_on_the_page() -> None:
    text = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    for path in sorted((ROOT / "programs").glob("*.coda")):
        own = [n for n, p in coda.load(path).items() if Path(p.ir.span.source.path) == path]
        for name in own:
            assert name in named, f"{path.name}: {name}"
