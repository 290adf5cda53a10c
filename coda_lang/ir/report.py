"""The collector of diagnostics that a check runs with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coda_lang.errors import CodaError, Diagnostic, Note
from coda_lang.source import Span

ERROR_LIMIT = 1000  # a file with more mistakes is not looked at further


class Report:
    """Collects diagnostics. The same mistake at the same place counts once, however often it is met."""

    def __init__(self) -> None:
        self.errors: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self._seen: set[tuple[str, int, int, int]] = set()

    def add(self, code: str, span: Span, message: str, help: str | None = None, notes: Iterable[Note] = ()) -> None:
        key = _key(code, span)
        if key in self._seen:
            return
        self._seen.add(key)
        if len(self.errors) >= ERROR_LIMIT:
            raise CodaError(self.errors)
        diagnostic = Diagnostic(code, span, message, help, tuple(notes))
        (self.warnings if diagnostic.severity == "warning" else self.errors).append(diagnostic)

    def move(self, index: int, span: Span, message: str) -> None:
        """Say an error at another place: a mistake inside a built-in function is one of its caller."""
        error = self.errors[index]
        self._seen.discard(_key(error.code, error.span))
        self._seen.add(_key(error.code, span))
        self.errors[index] = replace(error, span=span, message=message)


def _key(code: str, span: Span) -> tuple[str, int, int, int]:
    return code, id(span.source), span.start, span.end
