"""Text to syntax tree, with every syntax error of a file in one go."""

from __future__ import annotations

import errno
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, VisitError

from coda_lang.errors import SHOWN, CodaError, Diagnostic
from coda_lang.folders import own_cache_root
from coda_lang.parser import syntax
from coda_lang.parser.build import Builder
from coda_lang.parser.mistakes import KEYWORDS, explain
from coda_lang.source import Source, Span

# Above this size only the first syntax error is looked for: each further one parses the text again.
RECOVERY_LIMIT = 50_000
NAME_LIMIT = 100
SIZE_LIMIT = 4 * 2**20  # bytes of a file; the longest program of a person has some thousands

_DEFINITION = re.compile(r'^(?:"|import\b|const\b|fn\b|kernel\b|map\b|reduce\b|block\b)', re.M)
_STATEMENT = re.compile(r"^[ \t]*(?:[^\W\d]\w*(?:[ \t]*,[ \t]*[^\W\d]\w*)*[ \t]*(?:=(?!=)|<-|\+<-)|\}|return\b)", re.M)


@cache
def grammar() -> Lark:
    text = files("coda_lang.parser").joinpath("grammar.lark").read_text(encoding="utf-8")
    # Its tables take longer to make than all else that a short process does. Lark unpickles them: nobody else may write
    # there. It checks that they are of this grammar and these versions, and makes them again if they cannot be read.
    folder = own_cache_root()
    tables = str(folder / "grammar.tables") if folder is not None else False
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True, cache=tables)


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a file as UTF-8. Raises OSError, or CodaError for bytes that are not UTF-8 and for more than 4 MiB."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a path has no null character", str(path))
    with open(path, "rb") as file:
        data = file.read(SIZE_LIMIT + 1)  # no more: a device may have no end
    if len(data) > SIZE_LIMIT:
        raise CodaError([_too_large(Source(str(path), ""))])
    data = data.removeprefix(BOM_UTF8)
    try:
        text = data.decode("utf-8")
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
        source = Source(path, source.removeprefix("\ufeff"))
    _readable(source)
    text = source.text
    diagnostics: list[Diagnostic] = []
    tree: Tree[Token] | None = None
    while tree is None:
        try:
            tree = grammar().parse(text)
        except UnexpectedInput as error:
            diagnostic, at = explain(error, source)
            if diagnostic in diagnostics:
                break
            diagnostics.append(diagnostic)
            blanked = _without_mistake(text, at)
            if len(text) > RECOVERY_LIMIT or len(diagnostics) > SHOWN or blanked == text:
                break
            text = blanked
    if tree is not None:
        bad = {token: token for token in _names(tree) if token in KEYWORDS or len(token) > NAME_LIMIT}
        diagnostics += [_bad_name(source, token) for token in bad.values()]
    if diagnostics or tree is None:
        raise CodaError(diagnostics)
    try:
        result: syntax.File = Builder(source, _comments(source.text)).transform(tree)
    except VisitError as error:
        raise error.orig_exc from None
    return result


def _readable(source: Source) -> None:
    """Refuse texts too large to parse in good time, and half surrogates, which no file can hold."""
    if len(source.text) > SIZE_LIMIT:
        raise CodaError([_too_large(source)])
    half = re.search("[\ud800-\udfff]", source.text)
    if half is not None:
        text = f"U+{ord(half[0]):04X} is half of a surrogate pair, not a character"
        raise CodaError([Diagnostic("E0001", Span(source, *half.span()), text, "decode the text properly before")])


def _too_large(source: Source) -> Diagnostic:
    text = f"the file has more than {SIZE_LIMIT // 2**20} MiB"
    return Diagnostic("E0009", Span(source, 0, 0), text, "split it, and import what the parts share")


def _names(tree: Tree[Token]) -> Iterator[Token]:
    """The names in a tree, from the last to the first. The tree may be deeper than Python recurs."""
    pending: list[Tree[Token] | Token] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, Tree):
            pending += [child for child in node.children if child is not None]
        elif node.type == "NAME":
            yield node


def _bad_name(source: Source, token: Token) -> Diagnostic:
    start = token.start_pos or 0
    span = Span(source, start, start + len(token))
    if len(token) > NAME_LIMIT:
        text = f"a name of {len(token)} characters"
        return Diagnostic("E0010", span, text, f"names have at most {NAME_LIMIT} characters")
    return Diagnostic("E0008", span, f"`{token}` is a keyword and cannot be used as a name", "choose another name")


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
        # A function without its `return` would be another mistake.
        kept = ("}", "return") if text.startswith("fn", begin) else ("}",)
        if first > body and after > 0 and not text[first:after].lstrip().startswith(kept):
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
