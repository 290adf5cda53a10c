"""Text for people: colours on a terminal only, errors on stderr, diagnostics with their lines and carets."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from coda_lang.errors import Diagnostic, printable, render

_CODES = {"bold": "1", "dim": "2", "red": "1;31", "green": "32", "yellow": "1;33", "cyan": "36", "blue": "1;34"}


def prepare() -> None:
    """Text that the output's encoding lacks is replaced, not an error; a stream that is closed takes what comes."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def has_colour(stream: TextIO) -> bool:
    """Colours are for terminals, and for those who did not refuse them (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour if the stream (stdout by default) shows colours."""
    if not text or not has_colour(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def error(message: str, help: str | None = None) -> None:
    """One message on stderr."""
    _report(f"{paint('error', 'red', sys.stderr)}: {printable(message)}", help)


def warning(message: str, help: str | None = None) -> None:
    _report(f"{paint('warning', 'yellow', sys.stderr)}: {printable(message)}", help)


def _report(text: str, help: str | None) -> None:
    if help:
        text += f"\n  {paint('help', 'cyan', sys.stderr)}: {printable(help)}"
    print(text, file=sys.stderr)


def without_python(help: str | None) -> str | None:
    """A help of the GPU path as the command line says it: it has an option where Python has other arrays."""
    return help and re.sub(
        r"(run with )?NumPy arrays (\(the|for the) interpreter\)?", "run with --backend interp", help
    )


def for_the_gpu(help: str | None) -> str | None:
    """A help of the GPU path, for what the interpreter cannot do."""
    return help and re.sub(r",? or (run with )?NumPy arrays (\(the|for the) interpreter\)?", "", help)


def diagnostics(found: Iterable[Diagnostic]) -> None:
    """Diagnostics on stderr in source order, 20 at most and the rest counted."""
    text = render(found)
    if text:
        print(_painted(text) if has_colour(sys.stderr) else text, file=sys.stderr)


def _painted(text: str) -> str:
    def colour(pattern: str, name: str, text: str) -> str:
        return re.sub(pattern, lambda m: f"\x1b[{_CODES[name]}m{m[0]}\x1b[0m", text, flags=re.M)

    text = colour(r"(?<=: )error\[\w+\](?=: )", "red", text)
    text = colour(r"(?<=: )warning\[\w+\](?=: )", "yellow", text)
    text = colour(r"^  help(?=: )", "cyan", text)
    text = colour(r"^  note(?=: )", "blue", text)
    return colour(r"(?<=\| )[ ^]*\^$", "red", text)


def blank() -> None:
    """An empty line between two groups of diagnostics."""
    print(file=sys.stderr)


def print_json(value: Any) -> None:
    """JSON on stdout, short lists on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    print(re.sub(r"\[\n\s+([^\[\]{}\"]*?)\n\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text))
