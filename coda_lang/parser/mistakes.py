"""Named syntax errors: from what the parser could not take to what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from unicodedata import category

from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from coda_lang.errors import Diagnostic, Note
from coda_lang.source import Source, Span

_DEFINES = frozenset({"import", "const", "fn", "kernel", "map", "reduce", "block"})
KEYWORDS = _DEFINES | {"as", "return", "inout", "in", "or", "and", "not", "true", "false", "round"}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_STRINGS_AND_COMMENTS = r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|//[^\n]*'

# What a character was probably meant to be.
_CHARACTERS = {
    "#": "comments start with `//`",
    ";": "statements end with their line; `;` only separates axes from element types in `<M, N; T: bf16 | f16>`",
    "'": "strings are written in double quotes",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=`",
    "^": "there is no power operator: multiply, or use exp2 and log2",
    "`": "names are written without quotes",
    "?": "there is no control flow: use `select(condition, x, y)`",
    "×": "multiply with `*`",
    "·": "multiply with `*`",
    "÷": "divide with `/`",
    "−": "the minus sign is `-`",
    "–": "the minus sign is `-`",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "←": "a store is written `output <- value`",
    "→": "outputs stand behind `->`",
    "²": "write `x * x`",
    "“": 'strings are written in double quotes: `"`',
    "”": 'strings are written in double quotes: `"`',
    "\u00a0": "this is a no-break space: write a plain one",
}

_FLOW = "there is no control flow: use `select(condition, x, y)`"
_LOOPS = "there are no loops: a kernel says what happens to one tile"
_BIND = "bind a name with `name = expression`"
_FUNCTION = "functions are written `fn name(x) = expression`"
_WORDS = {
    "if": _FLOW,
    "else": _FLOW,
    "for": _LOOPS,
    "while": _LOOPS,
    "let": _BIND,
    "var": _BIND,
    "def": _FUNCTION,
    "lambda": _FUNCTION,
    "from": 'imports are written `import "file.coda" { name }`',
}

_TYPED = "names have no declared type"
_ROUNDING = "a store rounds to the type of its output; within a body write `round<bf16>(x)`"
_REDUCING = "write `tile_{0}(x, over=N)` in a kernel or map, `{0}(x, over=N)` in a reduce"
_METHODS = {
    "float": "a value is f32 until it is stored",
    **dict.fromkeys(("to", "half", "bfloat16", "type", "astype", "cast"), _ROUNDING),
    **{name: _REDUCING.format(name) for name in ("sum", "max")},
    **dict.fromkeys(("t", "T", "transpose"), "only operands of the product are transposed: `a.T @ b`"),
}

_NEXT = r"[^\W\d]\w*(?:\s*,\s*[^\W\d]\w*)*\s*(?:=(?!=)|<-|\+<-)|return\b|\}"

_SHOWN = {
    "NAME": "a name", "NUMBER": "a number", "DOC": "a string", "KIND": "`kernel`, `map`, `reduce` or `block`",
    "$END": "the end of the file", "OPTIONAL": "`?`", "ELLIPSIS": "`...`",
    "LESS": "`<`", "GREATER": "`>`", "EQUAL": "`=`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`", "COLON": "`:`", "SEMICOLON": "`;`", "DOT": "`.`",
    "VBAR": "`|`", "STAR": "`*`", "SLASH": "`/`", "PLUS": "`+`", "MINUS": "`-`", "PERCENT": "`%`", "AT": "`@`",
}  # fmt: skip
_STARTS = frozenset({"NAME", "NUMBER", "LPAR", "MINUS"})  # what every place of an expression accepts
_COMPARISONS = frozenset({"EQ", "NE", "LE", "GE", "LESS", "GREATER"})
_OPERATORS = _COMPARISONS | {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "AT", "DOT", "AND", "OR"}
_DEFINITION = "a definition: `kernel`, `map`, `reduce`, `block`, `fn`, `const` or `import`"


def explain(error: UnexpectedInput, source: Source) -> tuple[Diagnostic, int]:
    """A diagnostic for a parse error, and the offset at which the parser stopped."""
    text = source.text
    at = error.pos_in_stream if isinstance(error.pos_in_stream, int) else len(text)
    if isinstance(error, UnexpectedCharacters):
        return _bad_character(source, at), at
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        return _unfinished(error, source), len(text)
    assert isinstance(error, UnexpectedToken)
    diagnostic = _Stop(error, source, at).explain()
    resume = diagnostic.span.end if diagnostic.span.text == "return" else min(at, diagnostic.span.start)
    return diagnostic, resume


def _bad_character(source: Source, at: int) -> Diagnostic:
    text, char = source.text, source.text[at]
    if char == '"':
        end = text.find("\n", at)
        span = Span(source, at, len(text) if end < 0 else end)
        return Diagnostic("E0006", span, "this string is not closed", 'close it with `"`, or `"""` if it spans lines')
    shown = f"`{char}`" if char.isprintable() and not category(char).startswith("M") else f"character U+{ord(char):04X}"
    return Diagnostic("E0002", Span(source, at, at + 1), f"unexpected {shown}", _CHARACTERS.get(char))


def _unfinished(error: UnexpectedInput, source: Source) -> Diagnostic:
    opener = _open_brackets(source.text)
    end = len(source.text.rstrip())
    if opener:
        span = Span(source, opener[-1], opener[-1] + 1)
        char = source.text[opener[-1]]
        return Diagnostic("E0004", span, f"this `{char}` is never closed", f"add the missing `{_CLOSERS[char]}`")
    span = Span(source, max(0, end - 1), end)
    help = _WORDS["from"] if re.search(r'import\s*"[^"]*"\s*$', source.text) else None
    return Diagnostic("E0003", span, f"the file ends where {_expected(_accepted(error))} is expected", help)


def _open_brackets(text: str) -> list[int]:
    """Where the brackets stand that are still open at the end, outside comments and strings."""
    stack: list[int] = []
    for match in re.finditer(_STRINGS_AND_COMMENTS + r"|[()\[\]{}]", text, re.S):
        if match[0] in _CLOSERS:
            stack.append(match.start())
        elif match[0] in ")]}" and stack and _CLOSERS[text[stack[-1]]] == match[0]:
            stack.pop()
    return stack


def _accepted(error: UnexpectedInput) -> set[str]:
    return set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())


@dataclass
class _Stop:
    """The place at which the parser stopped: the token it could not take, and what it would have taken."""

    error: UnexpectedToken
    source: Source
    at: int

    @cached_property
    def token(self) -> str:
        return str(self.error.token)

    @cached_property
    def accepts(self) -> set[str]:
        return _accepted(self.error)

    @cached_property
    def before(self) -> str:
        """The text up to the token, without the white space."""
        return self.source.text[: self.at].rstrip()

    @cached_property
    def word(self) -> str:
        """The word before the token; empty if another character stands there."""
        match = re.search(r"[^\W\d]\w*$", self.before[-200:])
        return match[0] if match else ""

    @property
    def span(self) -> Span:
        return Span(self.source, self.at, self.at + len(self.token))

    @property
    def starts_line(self) -> bool:
        return not self.source.text[self.source.text.rfind("\n", 0, self.at) + 1 : self.at].strip()

    @property
    def between_definitions(self) -> bool:
        return "KIND" in self.accepts

    @property
    def ends_expression(self) -> bool:
        """An expression could end before the token. At the end of a definition, the parser has already left it."""
        if self.between_definitions:
            return re.search(r"[\w)\].]$", self.before) is not None
        return {"PLUS", "MINUS"} <= self.accepts

    def explain(self) -> Diagnostic:
        token, word = self.token, self.word
        start = len(self.before) - len(word)
        line = self.source.text[self.source.text.rfind("\n", 0, start) + 1 : start]
        if word in _DEFINES and not line.strip() and "NAME" not in self.accepts and self.accepts != {"DOC"}:
            # The lexer reads a keyword as a name where only a name fits: the definition above is not finished.
            at = Span(self.source, start, len(self.before))
            return Diagnostic("E0003", at, f"`{word}` begins a definition, and the one above is not finished", None)
        if token in KEYWORDS and "NAME" in self.accepts and not (self.starts_line and token in _DEFINES | {"return"}):
            text = f"`{token}` is a keyword and cannot be used as a name"
            return Diagnostic("E0008", self.span, text, "choose another name")
        if (found := self._returned(start)) is not None:
            return Diagnostic("E0003", found, "only a function returns", "outputs are stored: `output <- value`")
        if word in _WORDS and not self.accepts & {"RPAR", "RSQB"}:
            at = Span(self.source, start, len(self.before))
            return Diagnostic("E0003", at, f"`{word}` means nothing here", _WORDS[word])
        at = Span(self.source, start, len(self.before))
        if word and token in ("=", "<-", "+<-") and self.ends_expression and not line.strip():
            text = f"`{_short(word)} {token}` begins a statement, and the one above is not finished"
            return Diagnostic("E0003", at, text, None)
        if word and self._follows_expression(start):
            return Diagnostic("E0003", at, f"expected an operator or the next statement, found `{_short(word)}`", None)
        if token in (")", "]", "}") and (bracket := self._bracket()) is not None:
            return bracket
        opener = self._unclosed()
        if opener is not None:
            char = self.source.text[opener]
            at = Span(self.source, opener, opener + 1)
            text = f"this `{char}` is not closed before the next statement"
            return Diagnostic("E0004", at, text, f"add the missing `{_CLOSERS[char]}`")
        expected = _expected(self.accepts)
        if self.between_definitions and self.ends_expression:
            expected = "an operator or the next definition"
        known = self._known() or (f"expected {expected}, found `{_short(token)}`", self._help())
        return Diagnostic("E0003", self.span, *known)

    def _follows_expression(self, start: int) -> bool:
        """Whether the word before the token was read as a new statement, but stands behind an expression."""
        line = self.source.text[self.source.text.rfind("\n", 0, start) + 1 : start].rstrip()
        return {"EQUAL", "__ANON_2"} <= self.accepts and line[-1:] not in ("", "{", "}", ",")

    def _unclosed(self) -> int | None:
        """Where a bracket stands that is open although a statement or the end of the body follows on a new line.

        A line of a longer list looks like a statement too (`a=x`), but its brackets close.
        """
        if not self.starts_line or not re.match(_NEXT, self.source.text[self.at :]):
            return None
        end = self.source.text.find("\n", self.at)
        stack = _open_brackets(self.source.text[: end if end >= 0 else None])
        inner = [i for i in stack if self.source.text[i] != "{" and i < self.at]
        return inner[-1] if inner else None

    def _bracket(self) -> Diagnostic | None:
        """What is wrong with a closing bracket, if it does not close the innermost open one."""
        text, token = self.source.text, self.token
        stack = _open_brackets(text[: self.at])
        if not any(_CLOSERS[text[i]] == token for i in stack):
            inner = stack[-1] if stack and text[stack[-1]] != "{" else None
            if inner is None or text[self.at + 1 :].lstrip().startswith(_CLOSERS[text[inner]]):
                help = "remove it, or add what it should close"
                return Diagnostic("E0004", self.span, f"this `{token}` closes nothing", help)
            wanted = _CLOSERS[text[inner]]
            note = Note(f"the `{text[inner]}` is here", Span(self.source, inner, inner + 1))
            message = f"this `{token}` does not close the `{text[inner]}`"
            return Diagnostic("E0004", self.span, message, f"write `{wanted}`", (note,))
        char = text[stack[-1]]
        if _CLOSERS[char] == token:
            return None
        at = Span(self.source, stack[-1], stack[-1] + 1)
        return Diagnostic("E0004", at, f"this `{char}` is not closed before `{token}`", f"add `{_CLOSERS[char]}`")

    def _returned(self, start: int) -> Span | None:
        """Where a `return` stands in the body of a kernel."""
        if self.token == "return" and "RBRACE" in self.accepts and self.starts_line:
            return self.span
        if self.word == "return" and "__ANON_2" in self.accepts:
            return Span(self.source, start, len(self.before))
        return None

    def _known(self) -> tuple[str, str | None] | None:
        """The text and help of a mistake with a name."""
        token, kind, accepts, before = self.token, self.error.token.type, self.accepts, self.before
        after = self.source.text[self.at + len(token) :]
        if token == "<-" and self.ends_expression:
            return "`<-` inside an expression is a store", "for a comparison with a negative number write `x < -y`"
        if token in ("==", "!=", "<", "<=", ">", ">=") and "AND" in accepts:
            return "comparisons do not chain", "write `a < b and b < c`"
        if token == "=" and before.endswith((":", "+", "-", "*", "/")):
            return f"there is no `{before[-1]}=`", f"{_BIND}: a name is bound once"
        if token in "+-*/:" and after.startswith("=") and "__ANON_2" in accepts:
            return f"there is no `{token}=`", f"{_BIND}: a name is bound once"
        if token == "=" and self.ends_expression:
            return "unexpected `=` in an expression", "compare with `==`; bind names at the start of a statement"
        if token == "=" and before.endswith("="):
            return "`==` compares, and this is no expression", _BIND
        if kind == "DOC" and "RBRACE" in accepts:
            return "a string cannot stand inside a body", "put documentation before the kernel, or write a `//` comment"
        if token == "*" and before.endswith("*"):
            return "unexpected `*`", _CHARACTERS["^"]
        if token == "/" and after.startswith("*"):
            return "unexpected `/*`", _CHARACTERS["#"]
        if token in _CHARACTERS and (self.ends_expression or self.between_definitions):
            return f"unexpected `{token}`", _CHARACTERS[token]
        if self.ends_expression and re.search(r"\d$", before) and self.at == len(before) and kind == "NAME":
            return f"`{_short(token)}` is no part of a number", "numbers are written 10, 0.5 or 1e-5"
        if (token == "." and after[:1].isdigit()) or (re.search(r"\d\.$", before) and accepts == {"NAME"}):
            return "unexpected `.`", "a number has a digit on both sides of its point: 0.5, 5.0"
        if (mistaken := self._borrowed()) is not None:
            return mistaken
        if token in _DEFINES and "RBRACE" in accepts:
            return f"`{token}` begins a definition inside a body", "close the body above with `}`"
        if token == "->" and "__ANON_2" in accepts:
            return "unexpected `->`", "a store is written `output <- value`"
        if token == "->" and accepts == {"EQUAL", "LBRACE"}:
            return "a function's results have no declared type", "write `fn name(x) = expression`, or `{ … return x }`"
        if token in (":", "::") and accepts <= {"COMMA", "EQUAL", "RPAR"}:
            return "a function's arguments have no type", "functions work on whatever types they are called with"
        return None

    def _borrowed(self) -> tuple[str, str] | None:
        """The text and help of what other languages write so."""
        token, accepts, before = self.token, self.accepts, self.before
        after = self.source.text[self.at + len(token) :]
        method = re.search(r"\w\)?\s*\.\s*(\w+)$", before)
        if token == "(" and method is not None and self.ends_expression:
            name = method[1]
            return "values have no methods", _METHODS.get(name, f"write `{_short(name)}(x)`")
        if self.word and "__ANON_2" in accepts:  # the word begins a statement
            if token == ":":
                return _TYPED, f"write `{_short(self.word)} = …`: the type follows from the value"
            if self.error.token.type == "NAME" and re.match(r"\s*=(?!=)", after):
                return _TYPED, f"write `{_short(token)} = …`: the type follows from the value"
        if before.endswith("->") and accepts == {"LPAR"}:
            return "the outputs stand in parentheses", f"write `-> ({_short(token)}: …)`"
        if token == "[" and accepts == {"LESS", "LPAR"}:
            return "the axes stand in `<…>`", f"write `{_short(self.word)}<M, N>(…)`"
        if token == ">" and before.endswith("="):
            return "there is no `=>`", "a store is written `output <- value`, a comparison `x >= y`"
        if token == "=" and after.startswith(">"):
            return "there is no `=>`", "the outputs stand behind `->`"
        return None

    def _help(self) -> str | None:
        token, kind, accepts = self.token, self.error.token.type, self.accepts
        if token in _WORDS:
            return _WORDS[token]
        if token in ("...", "…"):
            return "`...` is only written in `table[index, ...]`"
        if accepts == {"ELLIPSIS"} or (token == ":" and self.before.endswith("[")):
            return "only the rows of a table are indexed: `table[index, ...]`"
        if self.word == "import":
            return _WORDS["from"]
        if self.word == "round" and token == "(":
            return "write `round<bf16>(x)`"
        if "__ANON_2" in accepts and token == "[":
            return "a store writes the whole output: `output <- value`"
        if self.between_definitions:
            return self._outside()
        if "SEMICOLON" in accepts and token == ":":
            return "element types stand behind a `;`: `<M, N; T: bf16 | f16>`"
        if "__ANON_1" in accepts:
            return "a range is written `in low..high`, without its upper end"
        if "RSQB" in accepts and token in ("+", "-"):
            return "an extent is `r*X`, a number or `tiles(X)`: pass a sum as an axis of its own"
        if "LSQB" in accepts and token == "(":
            return "extents stand in brackets: `f32[M, N]`"
        if "COMMA" in accepts and kind in ("NAME", "INOUT"):
            return "separate the items with `,`"
        if accepts == {"COLON"}:
            generic = token in (",", ">") and "<" in self.before[self.before.rfind("(") + 1 :]
            return "element types are written `T: bf16 | f16`" if generic else "write `name: dtype[extents]`"
        return None

    def _outside(self) -> str | None:
        """The help for something between definitions."""
        if self.token == "," and self.ends_expression:
            return "several results are returned from braces: `fn f(x) { return x, y }`"
        if self.error.token.type == "NAME" and re.match(r"\w+\s*(=|<-|\+<-|,)", self.source.text[self.at :]):
            return "statements stand in the braces of a kernel, map, reduce, block or function"
        return None


def _short(token: str) -> str:
    line = token.split("\n")[0]
    return line if len(line) <= 40 else line[:39] + "…"


def _expected(accepts: set[str]) -> str:
    """What the parser would have taken, in words."""
    names = set(accepts)
    if names >= _STARTS:
        return "an expression"
    if "KIND" in names:
        return _DEFINITION
    parts = []
    if names >= {"PLUS", "MINUS"}:
        parts.append("an operator")
        names -= _OPERATORS | {"LPAR", "LSQB"}
    if "IN" in names:
        parts.append("a domain")
        names -= _COMPARISONS | {"IN"}
    ordered = sorted(names, key=lambda n: (n.startswith("__"), n))
    parts += [_SHOWN.get(n) or (f"`{_punctuation(n)}`" if n.startswith("__") else f"`{n.lower()}`") for n in ordered]
    if not parts:
        return "something else"
    if "`or`" in parts:  # two of the word would be hard to read
        return "one of " + " ".join(parts)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _punctuation(terminal: str) -> str:
    from coda_lang.parser.parse import grammar

    pattern = next((t.pattern.value for t in grammar().terminals if t.name == terminal), terminal)
    return str(pattern)
