"""Named syntax errors: from what the parser could not take to what to write instead."""

from __future__ import annotations

import re

from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from coda_lang.errors import Diagnostic
from coda_lang.source import Source, Span

KEYWORDS = frozenset(
    "import as const fn kernel map reduce return inout in or and not true false round".split()
)
_DEFINES = frozenset("import const fn kernel map reduce".split())
_CLOSERS = {"(": ")", "[": "]", "{": "}"}

# What a character that no token starts with was probably meant to be.
_CHARACTERS = {
    "#": "comments start with `//`",
    ";": "statements end with their line; `;` only separates axes from element types in `<M, N; T: bf16 | f16>`",
    "'": "strings are written in double quotes",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=`",
    "^": "there is no power operator: multiply, or use exp2 and log2",
    "`": "names are written without quotes",
}

_WORDS = {
    "if": "there is no control flow: use `select(condition, x, y)`",
    "for": "there are no loops: a kernel says what happens to one tile",
    "while": "there are no loops: a kernel says what happens to one tile",
    "let": "bind a name with `name = expression`",
    "var": "bind a name with `name = expression`",
    "def": "functions are written `fn name(x) = expression`",
    "else": "there is no control flow: use `select(condition, x, y)`",
}

_SHOWN = {
    "NAME": "a name", "NUMBER": "a number", "DOC": "a string", "KIND": "`kernel`, `map` or `reduce`",
    "LESS": "`<`", "GREATER": "`>`", "EQUAL": "`=`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`", "COLON": "`:`", "SEMICOLON": "`;`", "DOT": "`.`",
    "VBAR": "`|`", "$END": "the end of the file", "RETURN": "`return`", "OPTIONAL": "`?`", "INOUT": "`inout`",
    "ELLIPSIS": "`...`", "AS": "`as`", "IN": "`in`",
}  # fmt: skip
_STARTS_EXPRESSION = {"NAME", "NUMBER", "LPAR", "MINUS"}
_CONTINUES_EXPRESSION = {"PLUS", "MINUS", "STAR", "SLASH"}


def explain(error: UnexpectedInput, source: Source) -> tuple[Diagnostic, int]:
    """A diagnostic for a parse error, and the offset at which the parser stopped."""
    text = source.text
    at = error.pos_in_stream if isinstance(error.pos_in_stream, int) else len(text)
    if isinstance(error, UnexpectedCharacters):
        return _bad_character(source, at), at
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        return _unfinished(error, source), len(text)
    assert isinstance(error, UnexpectedToken)
    return _bad_token(error, source, at), at


def _bad_character(source: Source, at: int) -> Diagnostic:
    text, char = source.text, source.text[at]
    if char == '"':
        end = text.find("\n", at)
        span = Span(source, at, len(text) if end < 0 else end)
        return Diagnostic("E0006", span, "this string is not closed", 'close it with `"`, or `"""` if it spans lines')
    span = Span(source, at, at + 1)
    if text.startswith("**", at - 1):
        return Diagnostic("E0002", span, "unexpected `*`", _CHARACTERS["^"])
    shown = f"`{char}`" if char.isprintable() else f"character U+{ord(char):04X}"
    return Diagnostic("E0002", span, f"unexpected {shown}", _CHARACTERS.get(char))


def _unfinished(error: UnexpectedInput, source: Source) -> Diagnostic:
    opener = _unclosed(source.text)
    end = len(source.text.rstrip())
    if opener is not None:
        span = Span(source, opener, opener + 1)
        char = source.text[opener]
        return Diagnostic("E0004", span, f"this `{char}` is never closed", f"add the missing `{_CLOSERS[char]}`")
    expected = _expected(error)
    span = Span(source, max(0, end - 1), end)
    return Diagnostic("E0003", span, f"the file ends where {expected} is expected", None)


def _unclosed(text: str) -> int | None:
    """The innermost bracket that is still open at the end, outside comments and strings."""
    stack: list[int] = []
    for match in re.finditer(r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|//[^\n]*|[()\[\]{}]', text, re.S):
        if match[0] in _CLOSERS:
            stack.append(match.start())
        elif match[0] in ")]}" and stack and _CLOSERS[text[stack[-1]]] == match[0]:
            stack.pop()
    return stack[-1] if stack else None


def _bad_token(error: UnexpectedToken, source: Source, at: int) -> Diagnostic:
    token = str(error.token)
    span = Span(source, at, at + len(token))
    accepts = set(error.accepts or error.expected)
    before = source.text[:at].rstrip()
    previous = re.search(r"[^\W\d]\w*$", before)
    word = previous[0] if previous else ""
    expected = _expected(error)
    text, help = f"expected {expected}, found `{token}`", None
    starts_line = not source.text[source.text.rfind("\n", 0, at) + 1 : at].strip()
    if token in KEYWORDS and "NAME" in accepts and not (starts_line and token in _DEFINES):
        return Diagnostic("E0008", span, f"`{token}` is a keyword and cannot be used as a name", "choose another name")
    if word in _WORDS:
        start = len(before) - len(word)
        return Diagnostic("E0003", Span(source, start, len(before)), f"`{word}` means nothing here", _WORDS[word])
    if token == "<-" and accepts & _CONTINUES_EXPRESSION:
        text, help = "`<-` inside an expression is a store", "for a comparison with a negative number write `x < -y`"
    elif token in ("==", "!=", "<", "<=", ">", ">=") and "AND" in accepts:
        text, help = "comparisons do not chain", "write `a < b and b < c`"
    elif token == "=" and "RBRACE" in accepts | {"COMMA"} and _CONTINUES_EXPRESSION & accepts:
        text, help = "unexpected `=` in an expression", "compare with `==`; bind names at the start of a statement"
    elif token in (")", "]", "}") and accepts & _STARTS_EXPRESSION:
        text = f"expected an expression, found `{token}`"
    elif error.token.type == "DOC" and "RBRACE" in accepts:
        text, help = "a string cannot stand inside a body", "put documentation before the kernel, or write a `//` comment"
    elif token in ("...", "…"):
        help = "`...` is only written in `table[index, ...]`"
    elif token == "*" and before.endswith("*"):
        text, help = "unexpected `*`", _CHARACTERS["^"]
    elif "COMMA" in accepts and error.token.type in ("NAME", "INOUT"):
        help = "separate the items with `,`"
    elif "COLON" in accepts and accepts <= {"COLON"}:
        help = "inputs and outputs are written `name: dtype[extents]`"
    return Diagnostic("E0003", span, text, help)


def _expected(error: UnexpectedInput) -> str:
    names = set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    if names >= _STARTS_EXPRESSION:
        return "an expression"
    if "KIND" in names:
        return "a definition: `kernel`, `map`, `reduce`, `fn`, `const` or `import`"
    parts = []
    if names >= _CONTINUES_EXPRESSION:
        parts.append("an operator")
        names -= {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "AT", "DOT", "AND", "OR", "LPAR", "LSQB"}
        names -= {"EQ", "NE", "LE", "GE", "LESS", "GREATER"}
    parts += [_SHOWN.get(n, f"`{n.lower()}`") for n in sorted(names) if not n.startswith("__")]
    parts += ["`" + _punctuation(n) + "`" for n in sorted(names) if n.startswith("__")]
    if not parts:
        return "something else"
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _punctuation(terminal: str) -> str:
    from coda_lang.parser.parse import grammar

    pattern = next((t.pattern.value for t in grammar().terminals if t.name == terminal), terminal)
    return str(pattern)
