"""The formatter: one canonical text for a syntax tree, with every comment of its source.

    parse(format(tree)) == tree      format(parse(format(tree))) == format(tree)

Comments have no place in the tree. They are put back by position: one that ends a line stays at the end of what is
before it, one on a line of its own stays above what follows, and one inside of something that is printed on one line
goes above it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coda_lang.parser import syntax as s
from coda_lang.parser import unparse
from coda_lang.parser.parse import parse
from coda_lang.parser.unparse import INDENT, WIDTH
from coda_lang.source import Source

ALIGNED_WIDTH = 72  # comments of neighbouring lines share a column, unless the code is wider than this

_STRING_OR_COMMENT = re.compile(r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|//[^\n]*', re.S)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def format_text(text: str, path: str = "<string>") -> str:
    """The canonical form of a program. Raises CodaError with its syntax errors."""
    return format_file(parse(Source(path, text)))


def format_file(file: s.File) -> str:
    """The canonical text of a syntax tree; empty for an empty file."""
    return _Formatter(file).run()


@dataclass
class _Line:
    indent: int
    code: str
    comment: str = ""


@dataclass
class _Item:
    """Something that gets lines of its own. Comments before `inside` go above it; those after it are its own affair."""

    start: int
    inside: int
    end: int
    write: Callable[[], None]


class _Formatter:
    def __init__(self, file: s.File) -> None:
        self.file = file
        self.text = file.source.text
        self.comments = file.comments
        self.starts = [c.start for c in file.comments]
        self.next = 0  # the first comment that is not written yet
        self.lines: list[_Line] = []

    def run(self) -> str:
        items = self._top_items()
        self._block(items, 0, 0, len(self.text), self._apart)
        return _render(self.lines)

    # -- lines and comments --

    def _add(self, indent: int, code: str) -> None:
        self.lines.append(_Line(indent, code))

    def _blank(self) -> None:
        if self.lines and self.lines[-1] != _Line(0, ""):
            self.lines.append(_Line(0, ""))

    def _block(
        self, items: Sequence[_Item], indent: int, start: int, end: int, apart: Callable[[int], bool] | None = None
    ) -> None:
        """Items of one indentation and the comments among them, in the source's range ``start … end``.

        At most one blank line is kept between two of them; ``apart(i)`` puts one before item i.
        """
        at, fresh = start, True
        for i, item in enumerate(items):
            wanted = apart is not None and apart(i)
            at, fresh = self._comments_before(item.inside, indent, at, fresh, item.start, wanted)
            standing = bool(self.lines) and not self.lines[-1].code
            if not fresh and (self._has_blank(at, item.start) or (wanted and not standing)):
                self._blank()
            item.write()
            at, fresh = max(at, item.end), False
        self._comments_before(end, indent, at, fresh, end, False)

    def _comments_before(
        self, limit: int, indent: int, at: int, fresh: bool, item: int, wanted: bool
    ) -> tuple[int, bool]:
        """Write the comments that start before `limit`; those from `item` on lie inside of what comes next."""
        while self.next < len(self.comments) and self.starts[self.next] < limit:
            comment = self.comments[self.next]
            self.next += 1
            trails = not comment.own_line and self.lines and not self.lines[-1].comment and self.lines[-1].code
            if trails and comment.start < item and "\n" not in self.text[at : comment.start]:
                self.lines[-1].comment = comment.text
            else:
                if not fresh and (wanted or self._has_blank(at, min(comment.start, item))):
                    self._blank()
                self.lines.append(_Line(indent, "", comment.text))
                fresh = wanted = False
            at = comment.start + len(comment.text)
        return at, fresh

    def _has_blank(self, start: int, end: int) -> bool:
        return start < end and _BLANK_LINE.search(self.text, start, end) is not None

    def _any_comment(self, start: int, end: int) -> bool:
        i = bisect_left(self.starts, start)
        return i < len(self.starts) and self.starts[i] < end

    def _find(self, token: str, start: int) -> int:
        """Where `token` stands at or after `start`, outside comments. (No string can stand where this is asked.)"""
        i = bisect_left(self.starts, start)
        while True:
            stop = self.starts[i] if i < len(self.starts) else len(self.text)
            found = self.text.find(token, start, stop)
            if found >= 0 or i >= len(self.starts):
                return found
            start = max(start, stop + len(self.comments[i].text))
            i += 1

    # -- definitions --

    def _top_items(self) -> list[_Item]:
        """The file's documentation and its definitions; a definition begins with its own documentation."""
        definitions = self.file.definitions
        imports = {d.path_span.start for d in definitions if isinstance(d, s.Import)}
        docs = [m.span() for m in _STRING_OR_COMMENT.finditer(self.text) if m[0][0] == '"' and m.start() not in imports]
        items, used = [], 0
        if self.file.doc is not None:
            start, end = docs[0] if docs else (0, 0)
            items.append(_Item(start, start, end, self._doc(self.file.doc)))
            used = 1
        for d in definitions:
            start = d.span.start
            if not isinstance(d, s.Import) and d.doc is not None and docs:
                start, used = docs[used][0], used + 1
            items.append(self._definition(d, start))
        return items

    def _doc(self, doc: str) -> Callable[[], None]:
        return lambda: self._add(0, unparse.string(doc))

    def _definition(self, d: s.Definition, start: int) -> _Item:
        end = d.span.end
        match d:
            case s.Import():
                inside = self._find("{", d.path_span.end)
                return _Item(start, inside, end, lambda: self._import(d))
            case s.Const():
                return _Item(start, end, end, lambda: self._const(d))
            case s.Function():
                opener, closer = self._function_brackets(d)
                hoisted = d.short and not self._any_comment(opener, closer)
                inside = end if hoisted else opener
                return _Item(start, inside, end, lambda: self._function(d))
            case s.KernelDef():
                named = (d.dtypes or d.axes or (None,))[-1]
                inside = self._find("(", named.span.end if named is not None else d.name_span.end)
                return _Item(start, inside, end, lambda: self._kernel(d, inside))

    def _apart(self, i: int) -> bool:
        """Whether a blank line separates top-level item i from the one before it, whatever the source has."""
        if i == 0:
            return False
        first = self.file.doc is not None
        if first and i == 1:
            return True
        before, d = (self.file.definitions[i - first - 1], self.file.definitions[i - first])
        return type(before) is not type(d) or not (_is_line(before) and _is_line(d))

    def _import(self, d: s.Import) -> None:
        start = f"import {unparse.string(d.path)} {{"
        flat = f"{start} {', '.join(map(unparse.imported, d.names))} }}"
        inside = self._find("{", d.path_span.end)
        if len(flat) <= WIDTH and not self._any_comment(inside, d.span.end):
            self._add(0, flat)
            return
        self._add(0, start)
        self._block([self._listed(n, unparse.imported(n)) for n in d.names], INDENT, inside, d.span.end)
        self._add(0, "}")

    def _listed(self, node: s.Node, text: str) -> _Item:
        return _Item(node.span.start, node.span.end, node.span.end, lambda: self._add(INDENT, text + ","))

    def _const(self, d: s.Const) -> None:
        if d.doc is not None:
            self._add(0, unparse.string(d.doc))
        self._expression(0, f"const {d.name} = ", d.value)

    def _expression(self, indent: int, start: str, value: s.Expr, end: str = "") -> None:
        lines = unparse.broken(value, indent + len(start), indent, len(end))
        self._add(indent, start + lines[0])
        for line in lines[1:]:
            self._add(0, line)
        self.lines[-1].code += end

    def _function_brackets(self, d: s.Function) -> tuple[int, int]:
        opener = self._find("(", d.name_span.end)
        return opener, self._find(")", max([opener + 1, *(p.span.end for p in d.params)]))

    def _function(self, d: s.Function) -> None:
        if d.doc is not None:
            self._add(0, unparse.string(d.doc))
        opener, closer = self._function_brackets(d)
        in_params = self._any_comment(opener, closer)
        start = f"fn {d.name}("
        params = ", ".join(map(unparse.function_param, d.params))
        flat = f"{start}{params})"
        if len(flat) > WIDTH - 2 or in_params:
            self._add(0, start)
            items = [self._listed(p, unparse.function_param(p)) for p in d.params]
            self._block(items, INDENT, opener, closer)
            flat = ")"
        if not d.short:
            self._add(0, flat + " {")
            self._body(d.body, closer, d.span.end, d.results)
            self._add(0, "}")
            return
        value = d.results[0]
        commented = in_params and self._any_comment(closer, d.span.end)
        if commented or len(flat) + 3 + len(unparse.expression(value)) > WIDTH:
            self._add(0, flat + " =")
            item = _Item(value.span.start, d.span.end, d.span.end, lambda: self._expression(INDENT, "", value))
            self._block([item], INDENT, closer, d.span.end)
        else:
            self._add(0, f"{flat} = {unparse.expression(value)}")

    def _kernel(self, d: s.KernelDef, opener: int) -> None:
        if d.doc is not None:
            self._add(0, unparse.string(d.doc))
        closer = self._find(")", max([opener + 1, *(p.span.end for p in d.params)]))
        opener_out = self._find("(", closer)
        closer_out = self._find(")", max([opener_out + 1, *(o.span.end for o in d.outputs)]))
        in_params, in_outputs = self._any_comment(opener, opener_out), self._any_comment(opener_out, closer_out)
        start = f"{d.kind} {d.name}{unparse.axes(d)}("
        params = ", ".join(map(unparse.param, d.params))
        outputs = ", ".join(map(unparse.output, d.outputs))
        line = f"{start}{params}) -> ({outputs}) {{"
        if len(line) > WIDTH or in_params or in_outputs:
            line = f") -> ({outputs}) {{"
            if d.params or in_params:
                self._add(0, start)
                items = [self._listed(p, unparse.param(p)) for p in d.params]
                self._block(items, INDENT, opener, opener_out)
            else:
                line = start + line
            if len(line) > WIDTH or in_outputs:
                self._add(0, line[: line.rindex("(", 0, len(line) - len(outputs))] + "(")
                items = [self._listed(o, unparse.output(o)) for o in d.outputs]
                self._block(items, INDENT, opener_out, closer_out)
                line = ") {"
        self._add(0, line)
        self._body(d.body, closer_out, d.span.end, ())
        self._add(0, "}")

    # -- bodies --

    def _body(self, body: Sequence[s.Statement], start: int, end: int, results: Sequence[s.Expr]) -> None:
        items = [self._statement(st) for st in body]
        if results:
            begin = body[-1].span.end if body else start
            at = max(self.text.rfind("return", begin, results[0].span.start), begin)
            last = max(at, results[-1].span.end)
            items.append(_Item(at, last, last, lambda: self._return(results)))
        self._block(items, INDENT, start, end)

    def _statement(self, st: s.Statement) -> _Item:
        if isinstance(st, s.Bind):
            start = ", ".join(t.text for t in st.targets) + " = "
        elif isinstance(st, s.Perform):
            start = ""
        else:
            start = f"{st.target.text} {'+<-' if st.accumulate else '<-'} "
        span = st.span
        return _Item(span.start, span.end, span.end, lambda: self._expression(INDENT, start, st.value))

    def _return(self, results: Sequence[s.Expr]) -> None:
        start = "return "
        lines = unparse.listed(results, INDENT + len(start), INDENT)
        self._add(INDENT, start + lines[0])
        for line in lines[1:]:
            self._add(0, line)


def _is_line(d: s.Definition) -> bool:
    """A definition that is one line: it may stand right below another of its kind."""
    match d:
        case s.Import():
            return True
        case s.Const():
            return d.doc is None
        case s.Function():
            return d.doc is None and d.short
    return False


def _render(lines: list[_Line]) -> str:
    parts: list[str] = []
    i = 0
    while i < len(lines):
        end = i
        while end < len(lines) and lines[end].code and lines[end].comment and lines[end].indent == lines[i].indent:
            end += 1
        if end == i:
            line = lines[i]
            parts.append(" " * line.indent + line.code + line.comment if line.code or line.comment else "")
            i += 1
            continue
        widths = [line.indent + len(line.code) for line in lines[i:end]]
        column = max((w for w in widths if w <= ALIGNED_WIDTH), default=0)
        for line, width in zip(lines[i:end], widths, strict=True):
            gap = " " * (max(column, width) - width + 2)
            parts.append(" " * line.indent + line.code + gap + line.comment)
        i = end
    return "\n".join(parts) + "\n" if parts else ""
