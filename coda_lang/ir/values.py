"""Typed values under construction: emission, kinds and extents, with every mistake reported once.

An operand is an index into the list of values, a `Poly` (a number, such as a literal or an axis length, that serves
as an integer or a float), or None after an error: what follows from an error is not reported again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coda_lang.ir import rules
from coda_lang.ir.axes import Grid, conflict, join_named
from coda_lang.ir.ops import OPS, TILE_RESULTS
from coda_lang.ir.program import Attr, Number, Store, Value
from coda_lang.ir.report import Report
from coda_lang.ir.signature import Signature, SignatureChecker
from coda_lang.ir.types import BOOL, F32, I64, Dim, DType, Type, axis_dim
from coda_lang.parser import syntax as s
from coda_lang.source import Span

VALUE_LIMIT = 100_000  # operations and inlined calls of one kernel
POLY_LIMIT = 200  # parts of an integer expression whose kind is open
KIND_NAMES = {"F": "a float", "I": "an integer", "B": "a bool"}


@dataclass(frozen=True)
class Poly:
    """A number whose kind its use decides: an integer literal, an axis length, or what operations make of them."""

    op: str  # const, axis, or an operation whose result is of its operands' kind
    args: tuple[int | Poly, ...] = ()  # of select, the condition is a value
    value: int = 0
    axis: str = ""
    dims: tuple[Dim, ...] = ()
    size: int = 1


Operand = int | Poly | None
Operands = tuple[Operand, ...]


class AbandonedError(Exception):
    """The body is too large to check further; the reason is reported."""


class ValueBuilder:
    """The values of one kernel, and the state of checking it."""

    def __init__(
        self,
        definition: s.KernelDef | s.Function,
        signature: Signature,
        dims: SignatureChecker,
        grid: Grid | None,
        report: Report,
    ) -> None:
        self.signature, self.grid, self.report = signature, grid, report
        self.dims = dims
        self.kind = definition.kind if isinstance(definition, s.KernelDef) else "map"
        self._definition = definition
        self.values: list[Value] = []
        self.stores: list[Store] = []
        self.accumulator: int | None = None
        self.product: s.Binary | None = None
        self.contracted: Dim | None = None
        self._used_params: set[str] = set()
        self._stored: dict[str, Span] = {}
        self._misnamed = False  # a store names no output
        self._misread: set[str] = set()  # inout inputs that are read
        self._loads: dict[str, Operand] = {}
        self._calls = 0
        self._nesting = 0
        self._inlined: dict[tuple[int, Operands], Operands] = {}

    # -- values ----------------------------------------------------------------------------------------------------

    def emit(self, op: str, args: tuple[int, ...], attr: Attr, dtype: DType, dims: tuple[Dim, ...], span: Span) -> int:
        self._count(len(self.values))
        self.values.append(Value(op, args, attr, Type(dtype, dims), span))
        return len(self.values) - 1

    def _count(self, number: int) -> None:
        """Refuse programs that inlining makes huge: functions that call each other twice double at each level."""
        if number >= VALUE_LIMIT:
            text = f"`{self._definition.name}` has more than {VALUE_LIMIT} operations once its functions are inlined"
            self.report.add("E0114", self._definition.name_span, text, "split it into several kernels")
            raise AbandonedError

    def number(self, value: Number, span: Span) -> int:
        if isinstance(value, bool):
            return self.emit("const", (), value, BOOL, (), span)
        if isinstance(value, int):
            return self.emit("const", (), value, I64, (), span)
        with np.errstate(all="ignore"):
            return self.emit("const", (), float(np.float32(value)), F32, (), span)

    def as_kind(self, operand: Operand, kind: str, span: Span) -> int | None:
        """Make a polymorphic number an integer or a float; other operands stay."""
        if not isinstance(operand, Poly):
            return operand
        integer = kind == "I"
        if operand.op == "const":
            return self.number(operand.value if integer else float(operand.value), span)
        if operand.op == "axis":
            return self.emit("axis", (), axis_dim(operand.axis), I64 if integer else F32, (), span)
        args = [self.as_kind(a, kind, span) for a in operand.args]
        known = tuple(a for a in args if a is not None)
        return self.emit(operand.op, known, None, I64 if integer else F32, operand.dims, span)

    def kind_of(self, operand: Operand) -> str | None:
        if not isinstance(operand, int):
            return None
        return {F32: "F", I64: "I", BOOL: "B"}[self.values[operand].type.dtype]

    def show(self, operand: Operand, span: Span) -> str:
        """How a message names an operand: its text, if short, and its type."""
        text = " ".join(span.text.split())
        name = f"`{text}`" if len(text) <= 40 else "this"
        if isinstance(operand, int):
            return f"{name} is {self.values[operand].type}"
        return f"{name} is a number"

    # -- operations ------------------------------------------------------------------------------------------------

    def apply(self, op: str, operands: list[tuple[Operand, Span]], span: Span, attr: Attr = None) -> Operand:
        """One row of the operation table on operands: kinds are checked and extents joined."""
        row = OPS[op]
        if any(o is None for o, _ in operands):
            return None
        for operand, at in operands:
            if not self.may_compute(operand, at):
                return None
        if row.result in ("N", "A"):
            alike = [o for (o, _), letter in zip(operands, row.params, strict=True) if letter == row.result]
            if all(isinstance(o, Poly) for o in alike):
                return self._poly(op, operands, span)
        args = self._check_kinds(op, operands, span)
        if args is None:
            return None
        dims = self.join([self.values[a].type.dims for a in args], operands, span)
        if dims is None:
            return None
        result = {"F": F32, "I": I64, "B": BOOL}.get(row.result)
        if result is None:  # N or A: the kind of the operands that share the letter
            result = self.values[args[row.params.index(row.result)]].type.dtype
        return self.emit(op, args, attr, result, dims, span)

    def _poly(self, op: str, operands: list[tuple[Operand, Span]], span: Span) -> Operand:
        """An operation on numbers of open kind, whose result is one: `select(x > 0, 1, 0)` may be stored to an i32."""
        args: list[int | Poly] = []
        for (operand, at), letter in zip(operands, OPS[op].params, strict=True):
            if letter in "FIB" and self.kind_of(operand) != letter:
                self._wrong_kind(op, operand, letter, at)
                return None
            assert operand is not None
            args.append(operand)
        dims = self.join([a.dims if isinstance(a, Poly) else self.values[a].type.dims for a in args], operands, span)
        if dims is None:
            return None
        size = 1 + sum(a.size for a in args if isinstance(a, Poly))
        poly = _fold(Poly(op, tuple(args), dims=dims, size=size))
        if poly.size > POLY_LIMIT:
            text = f"more than {POLY_LIMIT} integers and axis lengths are added and multiplied here"
            self.report.add("E0116", span, text, "say what they are with f32(…)")
            return None
        return poly

    def may_compute(self, operand: Operand, span: Span) -> bool:
        """Class 4 and 5 results, and picks, belong to a whole tile or row: nothing is computed from them."""
        if isinstance(operand, int) and self.values[operand].op in TILE_RESULTS:
            rules.refuse_tile_result(self.report, self.values[operand], span)
            return False
        return True

    def _check_kinds(self, op: str, operands: list[tuple[Operand, Span]], span: Span) -> tuple[int, ...] | None:
        row = OPS[op]
        shared = {letter: {self.kind_of(o) for (o, _), p in zip(operands, row.params, strict=True) if p == letter}
                  for letter in "NA"}  # fmt: skip
        args: list[int] = []
        for (operand, at), letter in zip(operands, row.params, strict=True):
            kinds = shared.get(letter, {letter}) - {None}
            if letter in "NA" and len(kinds) > 1:
                self._mixed(op, [o for o, p in zip(operands, row.params, strict=True) if p == letter], span)
                return None
            wanted = next(iter(kinds), None) or "F"
            arg = self.as_kind(operand, wanted, at)
            if arg is None:
                return None
            have = self.kind_of(arg)
            if (letter in "FIB" and have != letter) or (letter == "N" and have == "B"):
                self._wrong_kind(op, operand, letter, at)
                return None
            if letter == "A" and have != wanted:  # a number beside a bool
                self._mixed(op, [o for o, p in zip(operands, row.params, strict=True) if p == letter], span)
                return None
            args.append(arg)
        return tuple(args)

    def _mixed(self, op: str, operands: list[tuple[Operand, Span]], span: Span) -> None:
        shown = " and ".join(self.show(o, at) for o, at in operands)
        text = f"`{OPS[op].symbol or op}` needs operands of one kind, and {shown}"
        kinds = {self.kind_of(o) for o, _ in operands}
        help = "convert with f32(…)" if kinds == {"F", "I"} else "a bool becomes a number with f32(…) or select(…)"
        self.report.add("E0205", span, text, help)

    def _wrong_kind(self, op: str, operand: Operand, letter: str, at: Span) -> None:
        wanted = {"N": "a number", **KIND_NAMES}[letter]
        help = None
        if letter == "F" or letter == "N":
            help = "convert with f32(…)"
        elif letter == "B":
            help = "compare: `x != 0`"
        elif letter == "I":
            help = "integers are i32 and i64 inputs, row(), col(), axis lengths and whole numbers"
        if op == "div" and self.kind_of(operand) == "I":
            help = "`/` divides floats: use idiv(i, j) for integers, or convert with f32(…)"
        text = f"`{OPS[op].symbol or op}` takes {wanted}, and {self.show(operand, at)}"
        self.report.add("E0202", at, text, help)

    def join(
        self, dims: list[tuple[Dim, ...]], operands: list[tuple[Operand, Span]], span: Span
    ) -> tuple[Dim, ...] | None:
        """The extents that operands broadcast to, or None after an error."""
        joined: tuple[Dim, ...] = ()
        for d in dims:
            if self.grid is not None:
                new = self.grid.join(joined, d)
            else:
                new = join_named(joined, d)
                clash = conflict(new)
                if clash is not None and clash[0].tiled:
                    rules.refuse_mixed_tiles(self.report, clash, span)
                    return None
                new = None if clash else new
            if new is None:
                shown = " and ".join(self.show(o, at) for o, at in operands)
                text = f"extents do not meet: {shown}"
                self.report.add("E0203", span, text, self._join_help(joined, d))
                return None
            joined = new
        return joined

    def _join_help(self, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> str:
        if self.grid is not None:
            a, b = self.grid.col_of(left), self.grid.col_of(right)
            if a is not None and b is not None and {self.grid.part(a), self.grid.part(b)} == {"full"}:
                return f"{a} and {b} columns: pairs(x) halves the width, unpairs(x, y) doubles it"
        return "values spread along axes that they lack, matched by name"


def _fold(poly: Poly) -> Poly:
    """Arithmetic on integer literals is done at once; on axis lengths when they are known."""
    x = [a.value for a in poly.args if isinstance(a, Poly) and a.op == "const"]
    if poly.op in _FOLDED and len(x) == len(poly.args):
        value = _FOLDED[poly.op](x[0], x[-1])
        if abs(value) < 2**63:
            return Poly("const", value=value)
    return poly


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "neg": lambda x, _: -x,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "abs": lambda x, _: abs(x),
}
