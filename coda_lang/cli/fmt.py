"""`coda-run fmt [--check|--diff] FILE…`: programs in their canonical form."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from coda_lang.cli import CALL_WRONG, PROGRAM_WRONG, RIGHT, terminal
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.programs import STDIN, source
from coda_lang.errors import CodaError
from coda_lang.parser.format import format_text


def run(options: argparse.Namespace) -> int:
    code, changed = RIGHT, 0
    for path in options.files:
        try:
            before = source(path)
            after = _formatted(before.text, before.path)
        except CodaError as error:
            terminal.diagnostics(error.diagnostics)
            wrong = CALL_WRONG if all(d.code == "E0001" for d in error.diagnostics) else PROGRAM_WRONG
            code = max(code, wrong)
            continue
        except UsageError as error:
            terminal.error(str(error), error.help)
            code = CALL_WRONG
            continue
        differs = after != before.text
        changed += differs
        if options.diff and differs:
            _print_diff(path, before.text, after)
        elif options.check and differs:
            print(f"would change {path}")
        elif not options.diff and not options.check:
            if path == STDIN:
                sys.stdout.flush()
                sys.stdout.buffer.write(after.encode())
            elif differs:
                _write(path, after)
                print(f"formatted {path}")
    if changed and (options.check or options.diff):
        code = max(code, PROGRAM_WRONG)
    return code


def _formatted(text: str, path: str) -> str:
    """The canonical text, with the line ends that the file has."""
    newline = text.find("\n")
    if newline > 0 and text[newline - 1] == "\r":
        return format_text(text.replace("\r\n", "\n"), path).replace("\n", "\r\n")
    return format_text(text, path)


def _print_diff(path: str, before: str, after: str) -> None:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, f"{path} (formatted)", lineterm="")
    for line in lines:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        print(terminal.paint(line, colour) if colour is not None else line)


def _write(path: str, text: str) -> None:
    """Replace a file in one step: an interruption leaves the old one. A link stays a link."""
    target = Path(path).resolve()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
