"""What users of the language are told: diagnostics with places, and the three exceptions that carry messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from unicodedata import bidirectional, category, east_asian_width

from coda_lang.source import Span

SHOWN = 20  # diagnostics printed before the rest is only counted
COMPARED = 2000  # known names up to which a misspelt one is compared with all


@dataclass(frozen=True)
class Note:
    """A second place that explains a diagnostic: where a name was bound, where a function was called."""

    message: str
    span: Span


@dataclass(frozen=True)
class Diagnostic:
    """One mistake: a stable code, where it is, the rule it breaks and what to write instead."""

    code: str
    span: Span
    message: str
    help: str | None = None
    notes: tuple[Note, ...] = field(default=())

    @property
    def severity(self) -> str:
        return "warning" if self.code.startswith("W") else "error"

    def __str__(self) -> str:
        lines = [printable(f"{self.span}: {self.severity}[{self.code}]: {self.message}"), *_excerpt(self.span)]
        for note in self.notes:
            lines += [printable(f"  note: {note.message} ({note.span})"), *_excerpt(note.span)]
        if self.help:
            lines.append(printable(f"  help: {self.help}"))
        return "\n".join(lines)


def _excerpt(span: Span) -> list[str]:
    """The source line with carets under the span; a span of several lines is marked on its first."""
    line, column = span.source.position(span.start)
    text = span.source.line(line)
    if not text and span.start == span.end == 0:
        return []
    first, width = column - 1, max(1, min(span.end - span.start, len(text) - column + 1))
    if len(text) > 160:  # a window around the place, so that one long line does not fill the screen
        cut = max(0, first - 60)
        rest = "…" if len(text) > cut + 140 else ""
        text, first = ("…" if cut else "") + text[cut : cut + 140] + rest, first - cut + (1 if cut else 0)
        width = max(1, min(width, len(text) - first))
    shown = "".join(_printable(c) for c in text)
    pad = " " * sum(map(_width, shown[:first]))
    carets = "^" * max(1, sum(map(_width, shown[first : first + width])))
    gutter = f"{line:>5} | "
    return [(gutter + shown).rstrip(), " " * (len(gutter) - 2) + "| " + pad + carets]


def printable(text: str) -> str:
    """A text as a terminal can show it: file names can hold anything."""
    return "".join(c if c == "\n" else _printable(c) for c in text)


def _printable(char: str) -> str:
    """A character as a terminal can show it: control characters, half surrogates and what turns the direction of the
    text would break the line."""
    if char == "\t" or category(char) == "Zs":
        return " "
    kept = char.isprintable() or (category(char) == "Cf" and bidirectional(char) in ("BN", "ON", "L", "R", "AL"))
    return char if kept and char not in "\u200e\u200f\u061c" else "\ufffd"


def _width(char: str) -> int:
    """The columns that a character takes on a terminal."""
    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def render(diagnostics: Iterable[Diagnostic], limit: int = SHOWN) -> str:
    """Diagnostics as text in source order, at most `limit` of them and the rest counted."""
    ordered = in_order(diagnostics)
    parts = [str(d) for d in ordered[:limit]]
    if len(ordered) > limit:
        parts.append(f"… and {len(ordered) - limit} more")
    return "\n\n".join(parts)


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    return sorted(diagnostics, key=lambda d: (d.span.source.path, d.span.start, d.span.end, d.code))


class CodaError(Exception):
    """The program is wrong. ``diagnostics`` says where and why, in source order."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = in_order(diagnostics)
        super().__init__(render(self.diagnostics))


class ArgumentError(Exception):
    """The call is wrong. The message names the argument, what was expected and what came."""


class BackendError(Exception):
    """The GPU path cannot be used. The message says what is missing; ``help`` what to install or change."""

    def __init__(self, message: str, help: str | None = None) -> None:
        self.message, self.help = message, help
        super().__init__(message if help is None else f"{message}\n  help: {help}")


class UnknownNameError(KeyError):
    """A mapping has no such name. The message says what it has; a plain KeyError would show it quoted."""

    def __str__(self) -> str:
        return str(self.args[0])


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A help line for a misspelt name, if a known one is close."""
    names = sorted(set(known))
    if len(names) > COMPARED:
        return None
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None
