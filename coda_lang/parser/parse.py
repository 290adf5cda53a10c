"""Text to syntax tree, with every syntax error of a file in one go."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from lark import Lark
from lark.exceptions import UnexpectedInput, VisitError

from coda_lang.errors import SHOWN, CodaError, Diagnostic
from coda_lang.parser import syntax
from coda_lang.parser.build import Builder
from coda_lang.parser.mistakes import explain
from coda_lang.source import Source, Span

# Above this size only the first syntax error is looked for: each further one parses the text again.
RECOVERY_LIMIT = 200_000

_DEFINITION = re.compile(r'^(?:"|import\b|const\b|fn\b|kernel\b|map\b|reduce\b)', re.M)
_STATEMENT = re.compile(r"^[ \t]*(?:[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*(?:=(?!=)|<-|\+<-)|\}|return\b)", re.M)


@cache
def grammar() -> Lark:
    text = files("coda_lang.parser").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a file as UTF-8. Raises OSError, or CodaError for bytes that are not UTF-8."""
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", errors="replace")
        source = Source(str(path), before)
        span = Span(source, len(before), len(before))
        text = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise CodaError([Diagnostic("E0001", span, text, "save the file as UTF-8")]) from None
    return Source(str(path), text)


def parse(source: Source | str, path: str = "<string>") -> syntax.File:
    """Parse a text. Raises CodaError with every syntax error found, in source order."""
    if isinstance(source, str):
        source = Source(path, source)
    text, diagnostics = source.text, []
    tree = None
    while tree is None:
        try:
            tree = grammar().parse(text)
        except UnexpectedInput as error:
            diagnostic, at = explain(error, source)
            diagnostics.append(diagnostic)
            if len(text) > RECOVERY_LIMIT or len(diagnostics) > SHOWN:
                break
            blanked = _without_mistake(text, at)
            if blanked == text:
                break
            text = blanked
    if diagnostics or tree is None:
        raise CodaError(diagnostics)
    try:
        result: syntax.File = Builder(source, _comments(source.text)).transform(tree)
    except VisitError as error:
        raise error.orig_exc from None
    return result


def _without_mistake(text: str, at: int) -> str:
    """The text with the statement around an error blanked, or the definition if it is no statement.

    What follows can then be parsed for its own mistakes, without follow-on errors of this one.
    """
    # The token before the error says what is meant: the error may stand where the next thing begins.
    before = max(0, len(text[:at].rstrip()) - 1)
    starts = [m.start() for m in _DEFINITION.finditer(text)]
    begin = max((i for i in starts if i <= before), default=0)
    end = min((i for i in starts if i > before), default=len(text))
    body = text.find("{", begin, end)
    if 0 <= body < at:
        lines = [m.start() for m in _STATEMENT.finditer(text, body + 1, end)]
        first = max((i for i in lines if i <= before), default=-1)
        after = min((i for i in lines if i > max(before, first)), default=-1)
        if first > body and after > 0 and text[first:after].lstrip()[:1] != "}":
            begin, end = first, after
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def _comments(text: str) -> tuple[syntax.Comment, ...]:
    """The comments of a text that parses, found as the lexer does: a string hides what is in it."""
    found = []
    for match in re.finditer(r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|//[^\n]*', text, re.S):
        if match[0].startswith("//"):
            line_start = text.rfind("\n", 0, match.start()) + 1
            own = not text[line_start : match.start()].strip()
            found.append(syntax.Comment(match[0].rstrip(), match.start(), own))
    return tuple(found)

