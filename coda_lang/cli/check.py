"""`coda-run check FILE…`: every mistake of every file, each once."""

from __future__ import annotations

import argparse
from typing import Any

from coda_lang.cli import CALL_WRONG, PROGRAM_WRONG, RIGHT, terminal
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.programs import load
from coda_lang.errors import CodaError, Diagnostic


def run(options: argparse.Namespace) -> int:
    found: list[list[Diagnostic]] = []
    code, unreadable = RIGHT, 0
    for path in options.files:
        try:
            found.append(list(load(path).warnings))
        except CodaError as error:
            found.append(error.diagnostics)
            wrong = CALL_WRONG if all(d.code == "E0001" for d in error.diagnostics) else PROGRAM_WRONG
            code = max(code, wrong)
        except UsageError as error:
            terminal.error(str(error), error.help)
            unreadable += 1
            code = CALL_WRONG
    fresh = _once(found)
    if options.json:
        terminal.print_json([_as_json(d) for group in fresh for d in group])
        return code
    for i, group in enumerate(group for group in fresh if group):
        if i:
            terminal.blank()
        terminal.diagnostics(group)
    if unreadable == len(options.files):
        return code  # there is nothing to sum up
    errors = sum(d.severity == "error" for group in fresh for d in group)
    warnings = sum(len(group) for group in fresh) - errors
    counts = [_count(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
    checked = _count(len(options.files) - unreadable, "file")
    mood = "red" if errors else "yellow" if warnings else "green"
    print(f"{checked} checked: {terminal.paint(' and '.join(counts) or 'no errors', mood)}")
    return code


def _once(groups: list[list[Diagnostic]]) -> list[list[Diagnostic]]:
    """A mistake in a file that several import is reported by the first."""
    seen: set[tuple[str, int, int, str, str]] = set()
    fresh: list[list[Diagnostic]] = []
    for group in groups:
        keys = [(d.span.source.path, d.span.start, d.span.end, d.code, d.message) for d in group]
        fresh.append([d for d, key in zip(group, keys, strict=True) if key not in seen])
        seen.update(keys)
    return fresh


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _as_json(d: Diagnostic) -> dict[str, Any]:
    line, column = d.span.source.position(d.span.start)
    end_line, end_column = d.span.source.position(d.span.end)
    return {
        "path": d.span.source.path,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "severity": d.severity,
        "code": d.code,
        "message": d.message,
        "help": d.help,
        "notes": [{"message": n.message, "place": str(n.span)} for n in d.notes],
    }
