"""Syntax-tree nodes back to text, with few parentheses and with breaks in long expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from coda_lang.parser import syntax as s

WIDTH = 100
INDENT = 4

# Binding strength, loosest first; it mirrors the grammar's levels.
_OR, _AND, _NOT, _COMPARE, _SUM, _TERM, _SIGN, _POSTFIX, _ATOM = range(9)
_BINARY = {
    "or": _OR, "and": _AND, "==": _COMPARE, "!=": _COMPARE, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE,
    ">=": _COMPARE, "+": _SUM, "-": _SUM, "*": _TERM, "/": _TERM, "%": _TERM, "@": _TERM,
}  # fmt: skip


def _strength(e: s.Expr) -> int:
    match e:
        case s.Binary():
            return _BINARY[e.op]
        case s.Unary():
            return _NOT if e.op == "not" else _SIGN
        case s.Attribute():
            return _POSTFIX
    return _ATOM


def _operand_levels(e: s.Binary) -> tuple[int, int]:
    """How strongly the two sides must bind: operators group to the left, comparisons not at all.

    `(x / y) * z` and `(a @ b) * c` keep parentheses that the grammar could do without, for the reader.
    """
    level = _BINARY[e.op]
    clearer = level == _TERM and isinstance(e.left, s.Binary) and e.left.op in ("@", "/", "%") and e.left.op != e.op
    return (level + 1 if level == _COMPARE or clearer else level), level + 1


def expression(e: s.Expr, level: int = _OR) -> str:
    """An expression on one line, in parentheses if it binds more loosely than `level`."""
    text = _bare(e)
    return f"({text})" if _strength(e) < level else text


def _bare(e: s.Expr) -> str:
    match e:
        case s.Name() | s.Number():
            return e.text
        case s.Boolean():
            return "true" if e.value else "false"
        case s.Unary():
            return ("not " if e.op == "not" else e.op) + expression(e.operand, _strength(e))
        case s.Binary():
            left, right = _operand_levels(e)
            return f"{expression(e.left, left)} {e.op} {expression(e.right, right)}"
        case s.Attribute():
            return f"{expression(e.operand, _POSTFIX)}.{e.name}"
        case s.Call():
            return f"{e.function}({', '.join(map(_argument, e.arguments))})"
        case s.Round():
            return f"round<{e.dtype}>({expression(e.operand)})"
        case s.Index():
            return f"{e.table}[{expression(e.index)}{', ...' if e.ellipsis else ''}]"
    raise TypeError(f"no text for {type(e).__name__}")


def _argument(a: s.Argument) -> str:
    return expression(a.value) if a.name is None else f"{a.name}={expression(a.value)}"


def broken(e: s.Expr, column: int, indent: int, tail: int = 0, level: int = _OR) -> list[str]:
    """An expression that starts at `column`, with `tail` characters behind it, broken where it would pass WIDTH.

    The first line is without indentation; the others have theirs, at least `indent` columns.
    """
    flat = expression(e, level)
    if column + len(flat) + tail <= WIDTH:
        return [flat]
    if _strength(e) < level:
        return _wrapped("(", broken(e, column + 1, indent, tail + 1), ")")
    match e:
        case s.Unary():
            op = "not " if e.op == "not" else e.op
            return _wrapped(op, broken(e.operand, column + len(op), indent, tail, _strength(e)), "")
        case s.Binary():
            return _chain(e, column, indent, tail)
        case s.Attribute():
            end = f".{e.name}"
            return _wrapped("", broken(e.operand, column, indent, tail + len(end), _POSTFIX), end)
        case s.Call() if e.arguments:
            return _call(e, indent)
        case s.Round():
            start = f"round<{e.dtype}>("
            return _wrapped(start, broken(e.operand, column + len(start), indent, tail + 1), ")")
        case s.Index():
            start, end = f"{e.table}[", ", ...]" if e.ellipsis else "]"
            return _wrapped(start, broken(e.index, column + len(start), indent, tail + len(end)), end)
    return [flat]


def _wrapped(start: str, lines: list[str], end: str) -> list[str]:
    lines[0] = start + lines[0]
    lines[-1] += end
    return lines


def _chain(e: s.Binary, column: int, indent: int, tail: int) -> list[str]:
    """Operands of one strength, filled into lines that begin with an operator."""
    level = _BINARY[e.op]
    rest: list[tuple[str, s.Expr]] = []
    first: s.Expr = e
    strength = level
    while isinstance(first, s.Binary) and _BINARY[first.op] == level == strength:
        rest.append((first.op, first.right))
        strength = _operand_levels(first)[0]
        first = first.left
    rest.reverse()
    inner = indent + INDENT
    lines = broken(first, column, inner, 0, strength)
    for i, (op, right) in enumerate(rest):
        after = tail if i == len(rest) - 1 else 0
        flat = expression(right, level + 1)
        here = (column if len(lines) == 1 else 0) + len(lines[-1])
        if here + len(op) + 2 + len(flat) + after <= WIDTH:
            lines[-1] += f" {op} {flat}"
        else:
            part = broken(right, inner + len(op) + 1, inner, after, level + 1)
            lines += [" " * inner + f"{op} {part[0]}", *part[1:]]
    return lines


def _call(e: s.Call, indent: int) -> list[str]:
    inner = indent + INDENT
    lines = [f"{e.function}("]
    for a in e.arguments:
        start = "" if a.name is None else f"{a.name}="
        part = broken(a.value, inner + len(start), inner, 1)
        lines += [" " * inner + start + part[0], *part[1:]]
        lines[-1] += ","
    return [*lines, " " * indent + ")"]


def listed(exprs: Sequence[s.Expr], column: int, indent: int) -> list[str]:
    """Expressions with commas between them."""
    flat = ", ".join(map(expression, exprs))
    if column + len(flat) <= WIDTH:
        return [flat]
    lines: list[str] = []
    for i, e in enumerate(exprs):
        comma = "," if i < len(exprs) - 1 else ""
        part = broken(e, column if not lines else indent + INDENT, indent + INDENT, len(comma))
        part[-1] += comma
        if lines:
            part[0] = " " * (indent + INDENT) + part[0]
        lines += part
    return lines


# -- signatures ----------------------------------------------------------------------------------------------------


def extent(d: s.DimExpr, space: str = "") -> str:
    """`N/2`, `2*N`, `tiles(N)`; with spaces where an axis is split, `H * D`."""
    match d:
        case s.DimName() | s.DimNumber():
            return d.text
        case s.DimTiles():
            return f"{d.function}({d.axis})"
        case s.DimBinary():
            return f"{extent(d.left, space)}{space}{d.op}{space}{extent(d.right, space)}"


def type_(t: s.TypeExpr) -> str:
    return t.dtype if t.dims is None else f"{t.dtype}[{', '.join(map(extent, t.dims))}]"


def axes(k: s.KernelDef) -> str:
    if not k.axes:
        return ""
    names = ", ".join(map(_axis, k.axes))
    dtypes = ", ".join(f"{d.name}: {' | '.join(d.choices)}" for d in k.dtypes)
    return f"<{names}; {dtypes}>" if dtypes else f"<{names}>"


def _axis(a: s.AxisDef) -> str:
    split = "" if a.split is None else f" = {extent(a.split, ' ')}"
    return a.name + split + ("" if a.by is None else f" by {a.by}")


def param(p: s.ParamDef) -> str:
    text = f"{'inout ' if p.inout else ''}{p.name}: {type_(p.type)}"
    if p.domain is not None:
        text += f" {_domain(p.domain)}"
    return text if p.default is None else f"{text} = {expression(p.default)}"


def _domain(d: s.DomainExpr) -> str:
    low = expression(d.low, _SUM)
    if d.high is None:
        return f"{d.op} {low}"
    return f"in {low}..{expression(d.high, _SUM)}" + (f" or {d.other}" if d.other is not None else "")


def output(o: s.OutputDef) -> str:
    return f"{o.name}: {type_(o.type)}{'?' if o.optional else ''}"


def function_param(p: s.FunctionParam) -> str:
    return p.name if p.default is None else f"{p.name} = {expression(p.default)}"


def imported(i: s.Imported) -> str:
    return i.name if i.alias is None else f"{i.name} as {i.alias}"


def kernel_signature(k: s.KernelDef) -> str:
    """The signature on one line, without the keyword."""
    params, outputs = ", ".join(map(param, k.params)), ", ".join(map(output, k.outputs))
    return f"{k.name}{axes(k)}({params}) -> ({outputs})"


def function_signature(f: s.Function) -> str:
    return f"{f.name}({', '.join(map(function_param, f.params))})"


def string(value: str) -> str:
    """A literal of this value: `"…"` on one line, `\"""…\"""` over several or where that saves escapes."""
    text = value.replace("\\", "\\\\").replace("\t", "\\t")
    if "\n" not in text and '"' not in text:
        return f'"{text}"'
    # A quote that would end the literal, or be read with the quotes that do, is escaped.
    return '"""' + re.sub(r'"(?="")|"\Z', r'\\"', text) + '"""'
