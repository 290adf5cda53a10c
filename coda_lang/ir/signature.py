"""Signatures: from the syntax of axes, inputs and outputs to the IR's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property

from coda_lang.errors import Note, did_you_mean
from coda_lang.ir.constants import constant_value, refuse_name, refuse_option
from coda_lang.ir.module import Scope
from coda_lang.ir.program import Bound, Domain, DTypeParam, Number, Output, Param, Split
from coda_lang.ir.report import Report
from coda_lang.ir.types import DTYPES, Dim, DType, axis_dim, const_dim, tiles_dim
from coda_lang.parser import syntax as s
from coda_lang.source import Span


@dataclass
class Signature:
    axes: tuple[str, ...]
    splits: tuple[Split, ...]
    dtypes: tuple[DTypeParam, ...]
    params: tuple[Param, ...]
    outputs: tuple[Output, ...]
    poisoned: set[str] = field(default_factory=set)  # inputs and outputs whose type has an error

    @cached_property
    def _params(self) -> dict[str, Param]:
        return {p.name: p for p in self.params}

    @cached_property
    def _outputs(self) -> dict[str, Output]:
        return {o.name: o for o in self.outputs}

    def param(self, name: str) -> Param | None:
        return self._params.get(name)

    def output(self, name: str) -> Output | None:
        return self._outputs.get(name)

    def kinds(self, dtype: DType | str) -> set[str]:
        """The kinds of element (float, int, bool) that a dtype or dtype parameter stands for."""
        if isinstance(dtype, DType):
            return {dtype.kind}
        return {c.kind for p in self.dtypes if p.name == dtype for c in p.choices}


_EXTENTS = "an extent is an axis times or divided by a whole number, a number, or `tiles(X)`"
_BOUNDS = "a bound is a finite number, or an axis plus or minus a number: `0`, `N`, `N - 1`"


class SignatureChecker:
    """Checks one kernel's signature."""

    def __init__(self, definition: s.KernelDef, scope: Scope, report: Report) -> None:
        self.definition, self.scope, self.report = definition, scope, report
        self.axes: dict[str, Span] = {}
        self.splits: list[Split] = []
        self.dtypes: dict[str, DTypeParam] = {}
        self.used_axes: set[str] = set()
        self._unknown: set[str] = set()

    def check(self) -> Signature:
        d = self.definition
        for axis in d.axes:
            self._declare(axis.name, axis.span)
            if axis.by is not None and d.kind != "block":
                text = f"a {d.kind} is not cut along `{axis.name}`: its tiles are a matter of how it is compiled"
                self.report.add("E0511", axis.span, text, "cut a `block` that calls it")
        for axis in d.axes:
            if axis.split is not None:
                self._split(axis)
        for dtype in d.dtypes:
            self._dtype_param(dtype)
        names: dict[str, Span] = {}
        poisoned: set[str] = set()
        host = {p.name for p in d.params if p.type.dims is None}
        params = [p for p in (self._param(p, names, poisoned, host) for p in d.params) if p is not None]
        written: dict[str, Span] = {p.name: p.span for p in d.params if p.inout}
        # An output may have the name of an input: the name as a value is the input, a store means the output.
        outputs = [o for o in (self._output(o, written, poisoned) for o in d.outputs) if o is not None]
        if not poisoned:
            self._bound_dtypes(params)
        return Signature(
            tuple(self.axes), tuple(self.splits), tuple(self.dtypes.values()), tuple(params), tuple(outputs), poisoned
        )

    def _bound_dtypes(self, params: list[Param]) -> None:
        for d in self.definition.dtypes:
            fine = len({DTYPES[c].kind for c in d.choices if c in DTYPES}) == 1
            if fine and d.name in self.dtypes and all(p.dtype != d.name or p.default is not None for p in params):
                text = f"no input that every call passes has element type `{d.name}`, so a call may not say which it is"
                self.report.add(
                    "E0219", d.span, text, f"give an input the type `{d.name}[…]`, or write the type itself"
                )

    # -- axes --

    def _declare(self, name: str, span: Span) -> None:
        refuse_option(name, span, "axis", self.report)
        if refuse_name(name, span, self.report):
            pass
        elif name in self.axes:
            note = Note(f"`{name}` is declared here", self.axes[name])
            self.report.add("E0102", span, f"axis `{name}` is declared twice", "choose another name", [note])
        self.axes.setdefault(name, span)

    def _split(self, axis: s.AxisDef) -> None:
        split = axis.split
        ok = isinstance(split, s.DimBinary) and split.op == "*"
        factors = [split.left, split.right] if isinstance(split, s.DimBinary) else []
        if not ok or not all(isinstance(f, (s.DimName, s.DimNumber)) for f in factors):
            if isinstance(split, s.DimNumber):
                text = f"an axis has no length in the signature, and `{axis.name}` is {split.text}"
                help = f"write the number where the axis would stand: `N = {split.text} * D`, `f32[M, {split.text}]`"
            else:
                first, second = ("H", "D") if axis.name not in ("H", "D") else ("P", "Q")
                text = f"an axis is split into two factors: `{axis.name} = {first} * {second}`"
                help = "each factor is a name or a number"
            self.report.add("E0218", axis.span, text, help)
            self._unknown |= set(re.findall(r"\w+", axis.span.text))  # the factors, whichever they were meant to be
            return
        dims = []
        split_axes = {a.name for a in self.definition.axes if isinstance(a.split, s.DimBinary)}
        for factor in factors:
            if isinstance(factor, s.DimName):
                if factor.text in split_axes:
                    what = "itself" if factor.text == axis.name else f"`{factor.text}`, which is split too"
                    self.report.add(
                        "E0218", factor.span, f"`{axis.name}` cannot be split by {what}", "name two new axes"
                    )
                    return
                if factor.text not in self.axes:
                    self._declare(factor.text, factor.span)
                self.used_axes.add(factor.text)
                dims.append(axis_dim(factor.text))
            elif isinstance(factor, s.DimNumber):
                dims.append(const_dim(self._integer(factor)))
        if all(d.axis is None for d in dims) or dims[0] == dims[1] or any(d.coef == 0 for d in dims):
            text = f"`{axis.name}` is split into two different factors, one of them a name"
            self.report.add("E0218", axis.span, text, f"write `{axis.name} = H * D` or `{axis.name} = H * 128`")
            return
        self.splits.append(Split(axis.name, dims[0], dims[1]))

    def _dtype_param(self, dtype: s.DTypeDef) -> None:
        choices = []
        for choice in dtype.choices:
            if choice not in DTYPES:
                self._unknown_dtype(choice, dtype.span)
            else:
                choices.append(DTYPES[choice])
        if dtype.name in DTYPES or dtype.name in self.axes or dtype.name in self.dtypes:
            text = f"`{dtype.name}` is already the name of an axis or element type"
            self.report.add("E0217", dtype.span, text, "choose another name")
            return
        if len({c.kind for c in choices}) > 1:
            text = f"the choices of `{dtype.name}` are of different kinds"
            self.report.add("E0217", dtype.span, text, "they are all floats, all integers, or bool")
            choices = [c for c in choices if c.kind == choices[0].kind]
        self.dtypes[dtype.name] = DTypeParam(dtype.name, tuple(choices))

    def _unknown_dtype(self, name: str, span: Span) -> None:
        known = [*DTYPES, *self.dtypes]
        help = did_you_mean(name, known) or f"element types are {', '.join(known)}"
        if re.fullmatch(r"[A-Z]\w?", name):
            help = f"declare it behind the axes: `<M, N; {name}: bf16 | f16>`"
        self.report.add("E0106", span, f"unknown element type `{name}`", help)

    # -- extents --

    def dim(self, expr: s.DimExpr) -> Dim | None:
        """An extent, or None after an error."""
        match expr:
            case s.DimName():
                return axis_dim(expr.text) if self._known_axis(expr.text, expr.span) else None
            case s.DimNumber():
                return const_dim(self._integer(expr))
            case s.DimTiles():
                if expr.function != "tiles":
                    text = f"`{expr.function}(…)` is not an extent"
                    self.report.add("E0208", expr.span, text, did_you_mean(expr.function, ["tiles"]) or _EXTENTS)
                    return None
                return tiles_dim(expr.axis) if self._known_axis(expr.axis, expr.span) else None
            case s.DimBinary():
                return self._dim_binary(expr)

    def _known_axis(self, name: str, span: Span) -> bool:
        """Whether an axis is declared; an unknown one is reported where it is first met."""
        self.used_axes.add(name)
        if name in self.axes:
            return True
        if name not in self._unknown:
            self._unknown.add(name)
            help = did_you_mean(name, self.axes) or f"declare it: `<{', '.join([*self.axes, name])}>`"
            self.report.add("E0105", span, f"unknown axis `{name}`", help)
        return False

    def _dim_binary(self, expr: s.DimBinary) -> Dim | None:
        left, right = self.dim(expr.left), self.dim(expr.right)
        if left is None or right is None:
            return None
        for split in self.splits:
            if expr.op == "*" and (left, right) in ((split.outer, split.inner), (split.inner, split.outer)):
                return axis_dim(split.axis)
        number, other = (left, right) if left.axis is None and expr.op == "*" else (right, left)
        if number.axis is not None or other.tiled or number.coef == 0:
            self.report.add("E0208", expr.span, f"`{expr.span.text}` is not an extent", _EXTENTS)
            return None
        dim = other.scaled(number.coef if expr.op == "*" else 1 / number.coef)
        if dim.axis is None and dim.coef.denominator != 1:
            self.report.add("E0208", expr.span, f"`{expr.span.text}` is not a whole number", _EXTENTS)
            return None
        return dim

    def _integer(self, expr: s.DimNumber) -> int:
        if not expr.text.isdigit() or len(expr.text) > 18:
            self.report.add("E0208", expr.span, f"`{expr.text[:30]}` is not a whole number below 10¹⁸", _EXTENTS)
            return 1
        return int(expr.text)

    # -- inputs and outputs --

    def _dtype(self, type_: s.TypeExpr) -> DType | str | None:
        if type_.dtype in DTYPES:
            return DTYPES[type_.dtype]
        if type_.dtype in self.dtypes:
            return type_.dtype
        self._unknown_dtype(type_.dtype, type_.dtype_span)
        return None

    def _dims(self, type_: s.TypeExpr) -> tuple[Dim, ...] | None:
        dims = [self.dim(d) for d in type_.dims or ()]
        known = tuple(d for d in dims if d is not None)
        return known if len(known) == len(dims) else None

    def _name(self, name: str, span: Span, names: dict[str, Span], what: str) -> bool:
        if name in names:
            note = Note(f"`{name}` is declared here", names[name])
            self.report.add("E0102", span, f"{what} `{name}` is declared twice", "choose another name", [note])
            return False
        refuse_name(name, span, self.report)
        if name in self.axes:
            text = f"{what} `{name}` has the name of an axis"
            note = Note(f"`{name}` is declared here", self.axes[name])
            self.report.add("E0102", span, text, "choose another name", [note])
        names[name] = span
        return True

    def _each_once(self, name: str, span: Span, dims: tuple[Dim, ...]) -> bool:
        """Extents of a reduce are matched by axis, so no tensor has two along one."""
        keys = [(d.axis, d.tiled) if d.axis is not None else d for d in dims]
        twice = next((d for i, d in enumerate(dims) if keys[i] in keys[:i]), None)
        if self.definition.kind != "reduce" or twice is None:
            return True
        text = f"`{name}` is [{', '.join(map(str, dims))}], with two extents that a reduce cannot tell apart"
        self.report.add("E0316", span, text, "give one of them an axis of its own")
        return False

    def _param(self, p: s.ParamDef, names: dict[str, Span], poisoned: set[str], host: set[str]) -> Param | None:
        fresh = self._name(p.name, p.name_span, names, "input")
        refuse_option(p.name, p.name_span, "input", self.report)
        dtype, dims = self._dtype(p.type), self._dims(p.type)
        if not fresh:
            return None
        if dtype is None or dims is None:
            poisoned.add(p.name)
            return None
        if not self._each_once(p.name, p.name_span, dims):
            poisoned.add(p.name)
            return None
        if self.definition.kind == "reduce":
            dims = tuple(Dim(d.coef, d.axis, True, p.name) if d.tiled else d for d in dims)
        is_host = p.type.dims is None
        kinds = {dtype.kind} if isinstance(dtype, DType) else {c.kind for c in self.dtypes[dtype].choices}
        if is_host and isinstance(dtype, DType) and dtype.name not in ("f32", "i32", "i64"):
            text = f"a host scalar is f32, i32 or i64, not {dtype}"
            self.report.add(
                "E0209", p.type.span, text, f"write `{p.name}: f32`, or `{p.name}: {dtype}[]` on the device"
            )
        if is_host and isinstance(dtype, str):
            self.report.add("E0209", p.type.span, "a host scalar has a fixed type", f"write `{p.name}: f32`")
        if p.inout and not self._may_accumulate(p, dtype):
            poisoned.add(p.name)
            return None
        default = self._default(p, dtype, kinds) if p.default is not None else None
        domain = self._domain(p, kinds, host) if p.domain is not None else None
        return Param(p.name, dtype, dims, is_host, default, domain, p.inout, span=p.name_span)

    def _may_accumulate(self, p: s.ParamDef, dtype: DType | str) -> bool:
        """`inout` is for float tensors of kernels and maps; the rest is reported."""
        floats = isinstance(dtype, str) or dtype.kind == "float"
        if self.definition.kind == "reduce":
            text, help = "a reduce has no inout input", "return the sum as an output"
        elif p.type.dims is None or not floats:
            text = f"an inout input is a tensor of floats, and `{p.name}` is {p.type.span.text}"
            help = "store what is computed to an output"
        elif p.default is not None:
            text, help = f"inout `{p.name}` has a default, and it is always written", "remove the default"
        else:
            return True
        self.report.add("E0209", p.span, text, help)
        return False

    def _default(self, p: s.ParamDef, dtype: DType | str, kinds: set[str]) -> Number | None:
        assert p.default is not None
        value = constant_value(p.default, self.scope, self.report)
        if value is None:
            return 0
        is_bool = isinstance(value, bool)
        if kinds == {"bool"}:
            fits, wanted = is_bool, "`true` or `false`"
        elif "int" in kinds:
            bits = dtype.bits if isinstance(dtype, DType) else min(c.bits for c in self.dtypes[dtype].choices)
            fits = isinstance(value, int) and not is_bool and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
            wanted = f"a whole number of {bits} bits"
        else:
            fits, wanted = not is_bool, "a number"
        if not fits:
            text = f"the default of `{p.name}` does not fit {dtype}"
            self.report.add("E0214", p.default.span, text, f"write {wanted}")
            return 0
        return float(value) if kinds == {"float"} else value

    def _domain(self, p: s.ParamDef, kinds: set[str], host: set[str]) -> Domain | None:
        d = p.domain
        assert d is not None
        if kinds == {"bool"}:
            self.report.add("E0215", d.span, f"`{p.name}` is bool, which has no range", "remove the domain")
            return None
        low = self._bound(d.low)
        if d.op == "in":
            assert d.high is not None
            high = self._bound(d.high)
            if d.other is not None and d.other not in host:
                text = f"`{d.other}` is not a scalar input of this {self.definition.kind}"
                help = (
                    did_you_mean(d.other, host) or "behind `or` stands the name of a scalar input, `ignore_index: i64`"
                )
                self.report.add("E0215", d.span, text, help)
                return None
            if low is None or high is None:
                return None
            if low.dim == high.dim and not low.offset < high.offset:
                text = f"`{d.low.span.text}..{d.high.span.text}` is empty"
                self.report.add("E0215", d.span, text, "the upper end is excluded, and larger than the lower one")
            return Domain(low, high, other=d.other)
        if low is None:
            return None
        match d.op:
            case ">" | ">=":
                return Domain(low=low, low_strict=d.op == ">")
            case "<" | "<=":
                return Domain(high=low, high_strict=d.op == "<")
        self.report.add("E0215", d.span, f"`{d.op}` is no domain", "write `in low..high`, or one bound: `> x`, `<= x`")
        return None

    def _bound(self, expr: s.Expr) -> Bound | None:
        """A number, or an extent plus or minus a number; None after an error."""
        if not any(isinstance(e, s.Name) and e.text in self.axes for e in s.walk(expr)):
            value = constant_value(expr, self.scope, self.report, self.axes)
            if isinstance(value, bool) or (value is not None and not math.isfinite(value)):
                self.report.add("E0215", expr.span, f"`{expr.span.text}` is no bound", _BOUNDS)
                return None
            return Bound(value) if value is not None else None
        if isinstance(expr, s.Binary) and expr.op in ("+", "-"):
            left, right = self._bound(expr.left), self._bound(expr.right)
            if left is None or right is None:
                return None
            if right.dim is None:
                return Bound(left.offset + (1 if expr.op == "+" else -1) * right.offset, left.dim)
            if left.dim is None and expr.op == "+":
                return Bound(left.offset + right.offset, right.dim)
        else:
            dim = as_dim(expr)
            if dim is not None:
                extent = self.dim(dim)
                if extent is None or not extent.tiled:
                    return Bound(0, extent) if extent is not None else None
        self.report.add("E0215", expr.span, f"`{expr.span.text}` is no bound", _BOUNDS)
        return None

    def _output(self, o: s.OutputDef, written: dict[str, Span], poisoned: set[str]) -> Output | None:
        fresh = self._name(o.name, o.name_span, written, "output")
        dtype, dims = self._dtype(o.type), self._dims(o.type)
        if not fresh:
            return None
        if o.type.dims is None:
            text = f"output `{o.name}` is written to memory and needs extents"
            extents = "[M]" if self.definition.kind == "reduce" else "[M, N]"
            self.report.add("E0209", o.type.span, text, f"write `{o.name}: {o.type.dtype}{extents}`")
            dims = None
        if dtype is None or dims is None or not self._each_once(o.name, o.name_span, dims):
            poisoned.add(o.name)
            return None
        return Output(o.name, dtype, dims, o.optional, span=o.name_span)


def as_dim(expr: s.Expr) -> s.DimExpr | None:
    """An expression read as an extent (`over=tiles(N)`, `over=N/2`); None if it cannot be one."""
    match expr:
        case s.Name():
            return s.DimName(expr.text, span=expr.span)
        case s.Number():
            return s.DimNumber(expr.text, span=expr.span)
        case s.Call(arguments=(s.Argument(name=None, value=s.Name(text=axis)),)):
            return s.DimTiles(expr.function, axis, span=expr.span)
        case s.Binary(op="*" | "/"):
            left, right = as_dim(expr.left), as_dim(expr.right)
            if left is not None and right is not None:
                return s.DimBinary(expr.op, left, right, span=expr.span)
    return None
