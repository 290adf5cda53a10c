"""Constant expressions: numbers, named constants, and arithmetic on them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from coda_lang.errors import did_you_mean
from coda_lang.ir.module import Constant, Scope
from coda_lang.ir.program import Number
from coda_lang.ir.report import Report
from coda_lang.ir.types import DTYPES
from coda_lang.parser import syntax as s
from coda_lang.source import Span

BUILTIN = {"inf": math.inf, "nan": math.nan}
_NOT_A_NAME = {"_": "`_` drops a result and names nothing"}
_NOT_A_NAME |= {name: f"`{name}` is built in" for name in BUILTIN}
_NOT_A_NAME |= {name: f"`{name}` is an element type" for name in DTYPES}
INT_LIMIT = 2**63
# What calls from Python take beside inputs and axes, which they take by name too.
CALL_OPTIONS = frozenset({"outputs", "out", "check", "tile", "exact", "acc", "progress", "config"})


def refuse_name(name: str, span: Span, report: Report) -> bool:
    """Report a definition of a name that means something everywhere."""
    if name not in _NOT_A_NAME:
        return False
    report.add("E0112", span, _NOT_A_NAME[name], "choose another name")
    return True


def refuse_option(name: str, span: Span, what: str, report: Report) -> None:
    """Report an input or axis that no call could pass, because an option of calls has its name."""
    if name in CALL_OPTIONS:
        text = f"{what} `{name}` has the name of an option of calls, `k({name}=…)`, so none could pass it"
        report.add("E0117", span, text, "choose another name")


def number_value(expr: s.Number, report: Report) -> Number | None:
    """The value of a literal; floats must be within the range of f32."""
    if expr.is_integer:
        value = int(expr.text) if len(expr.text) < 20 else INT_LIMIT
        if value >= INT_LIMIT:
            report.add("E0113", expr.span, f"`{expr.text[:30]}` does not fit i64", "write it as a float: `1e20`")
            return None
        return value
    number = float(expr.text)
    if abs(number) > 3.4028235677973366e38:  # halfway from the largest f32 to the next power of two
        report.add(
            "E0113", expr.span, f"`{expr.text[:30]}` does not fit f32", "the largest f32 is 3.4028235e38; or use `inf`"
        )
        return None
    return number


def constant_value(expr: s.Expr, scope: Scope, report: Report, near: Iterable[str] = ()) -> Number | None:
    """The value of a constant expression, or None after an error; `near` are other names it may have meant."""
    match expr:
        case s.Number():
            return number_value(expr, report)
        case s.Boolean():
            return expr.value
        case s.Name():
            if expr.text in BUILTIN:
                return BUILTIN[expr.text]
            entity = scope.names.get(expr.text)
            if isinstance(entity, Constant):
                return entity.value
            if expr.text not in scope.poisoned:
                constants = [n for n, e in scope.names.items() if isinstance(e, Constant)]
                help = (
                    did_you_mean(expr.text, [*constants, *BUILTIN, *near])
                    or "a constant is made of numbers and constants"
                )
                report.add("E0207", expr.span, f"`{expr.text}` is not a constant", help)
            return None
        case s.Unary(op="-"):
            value = constant_value(expr.operand, scope, report, near)
            if isinstance(value, bool):
                report.add("E0207", expr.span, "a bool has no sign", "write a number")
                return None
            return None if value is None else -value
        case s.Binary(op="+" | "-" | "*" | "/"):
            left, right = (constant_value(e, scope, report, near) for e in (expr.left, expr.right))
            if left is None or right is None:
                return None
            return _arithmetic(expr, left, right, report)
    report.add("E0207", expr.span, "this is not a constant expression", "use numbers, constants and + - * /")
    return None


def _arithmetic(expr: s.Binary, left: Number, right: Number, report: Report) -> Number | None:
    if isinstance(left, bool) or isinstance(right, bool):
        report.add("E0207", expr.span, f"`{expr.op}` is for numbers, and one side is a bool", "write numbers")
        return None
    try:
        match expr.op:
            case "+":
                value: Number = left + right
            case "-":
                value = left - right
            case "*":
                value = left * right
            case _:
                value = left / right
    except ZeroDivisionError:
        value = math.nan if left == 0 or left != left else math.copysign(math.inf, left) * math.copysign(1, right)
    except OverflowError:
        value = math.inf
    if isinstance(value, int) and abs(value) >= INT_LIMIT:
        report.add("E0113", expr.span, "the value does not fit i64", "make one part a float")
        return None
    return value
