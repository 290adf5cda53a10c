"""A second definition of the language: evaluates a syntax tree, to check implementations against.

Written from docs/language.md and the documentation of the operations; it shares the parser with the package (and, to
judge a GPU, the errors that the operation table states), and nothing of the checker, the IR, the numerics or the
interpreter. It is slow and direct:

- a value knows its axes by label, and is spread along others by index arithmetic, never by NumPy broadcasting;
- f32 arithmetic is done in f64 and rounded once. For + − × ÷ √ that equals f32 arithmetic, since 53 ≥ 2·24 + 2
  (Figueroa, "When is double rounding innocuous?", 1995);
- rounding to a format is done on significands scaled to integers, and `fma` by rational arithmetic where f64 could err;
- transcendentals are torch's in f64.

Every float has an error bound beside it: 0 where the contract promises equal bits (given the same accumulator:
arithmetic, min, max, comparisons, select, casts, max-reductions, fma, sums that are exact in any order), otherwise what
the steps so far may add up to (γₙ·Σ|x| for sums, units in the last place for transcendentals). A bound of ∞ means that
the contract says nothing: a comparison could have gone either way, a value could have overflowed. `Expected.check`
holds an array to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coda_lang.ir.ops import OPS
from coda_lang.parser import parse
from coda_lang.parser import syntax as s

Array = NDArray[Any]

U = 2.0**-24
TINY = 2.0**-149


# -- formats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A binary format: significand bits, exponent of the smallest normal number, the largest finite one."""

    bits: int
    low: int
    largest: float
    saturates: bool = False


FORMATS = {
    "f32": Format(24, -126, float(2**128 - 2**104)),
    "f16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, float(2**128 - 2**120)),
    "f8e4m3": Format(4, -6, 448.0, saturates=True),
    "f8e5m2": Format(3, -14, 57344.0, saturates=True),
}
KINDS = {**dict.fromkeys(FORMATS, "F"), "i32": "I", "i64": "I", "bool": "B"}


def rounded(x: Array, name: str = "f32") -> Array:
    """f64 to the nearest number of a format, ties to even; what is too large becomes infinite, or the largest."""
    f = FORMATS[name]
    x = np.asarray(x, np.float64)
    if f.saturates:
        x = np.where(x > f.largest, f.largest, np.where(x < -f.largest, -f.largest, x))
    _, exponent = np.frexp(x)
    last = np.maximum(exponent, f.low + 1) - f.bits  # the exponent of the last bit
    y = np.ldexp(np.rint(np.ldexp(x, -last)), last)
    return np.where(np.isfinite(x) & (np.abs(y) > f.largest), np.copysign(np.inf, x), np.where(np.isfinite(x), y, x))


def ulp(x: Array) -> Array:
    """The distance of f32 numbers at |x|."""
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent, -125) - 24))


# -- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """An axis of a value. In a kernel `label` is row, full, inner or outer; in a reduce it is the extent's own name."""

    label: str
    length: int


@dataclass
class Value:
    """`kind` F, I or B; F values are f32 numbers held in f64. `error` bounds |any conforming result − value|."""

    kind: str
    axes: tuple[Axis, ...]
    value: Array
    error: Array

    @staticmethod
    def exact(kind: str, axes: tuple[Axis, ...], value: Any) -> Value:
        dtype = {"F": np.float64, "I": np.int64, "B": np.bool_}[kind]
        shape = tuple(a.length for a in axes)
        array: Array = np.array(value, dtype)
        assert array.shape == shape, (array.shape, shape)
        return Value(kind, axes, array, np.zeros(shape))


Operand = Value | int  # an int is a literal or a length: it serves as an integer or as a float


class Spread:
    """Index arithmetic: where an element of a result finds its part of an operand."""

    def __init__(self, axes: tuple[Axis, ...]) -> None:
        self.axes = axes
        self.shape = tuple(a.length for a in axes)
        self.grid = np.indices(self.shape)

    def __call__(self, x: Value) -> tuple[Array, Array]:
        where = []
        for axis in x.axes:
            if axis in self.axes:
                where.append(self.grid[self.axes.index(axis)])
                continue
            full = next(a for a in self.axes if a.label == "full")
            column = self.grid[self.axes.index(full)]
            if axis.label == "inner":
                where.append(column % axis.length if axis.length else column)
            else:
                assert axis.label == "outer", (axis, self.axes)
                where.append(column // (full.length // axis.length) if axis.length else column)
        if not where:
            return np.full(self.shape, x.value[()]), np.full(self.shape, x.error[()])
        return x.value[tuple(where)], x.error[tuple(where)]


# -- what a call should give -----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How much of what was compared the contract fixes."""

    exact: int = 0
    bounded: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        return self.exact + self.bounded + self.unknown


@dataclass
class Expected:
    """An output before its store: what it should hold, and in which format."""

    name: str
    dtype: str
    value: Value

    def check(self, got: Array, tally: Tally | None = None) -> None:
        """Raises AssertionError for the first element that no conforming implementation can give."""
        v = self.value
        assert got.shape == v.value.shape, f"{self.name}: shape {got.shape}, expected {v.value.shape}"
        if KINDS[self.dtype] != "F":
            want = v.value
            if self.dtype == "i32":
                want = want.astype(np.int32)
            wrong = (got != want) & (v.error == 0)
            low = high = want
        else:
            have = got.astype(np.float64)
            with np.errstate(all="ignore"):
                low, high = (rounded(rounded(v.value + side * v.error), self.dtype) for side in (-1, 1))
            nan = np.isnan(v.value)
            same = (have == low) & (np.signbit(have) == np.signbit(low))
            near = (have >= low) & (have <= high)
            fine = np.where(nan, np.isnan(have), np.where(v.error == 0, same, near))
            wrong = ~fine & (v.error < np.inf)
        if tally is not None:
            tally.exact += int((v.error == 0).sum())
            tally.unknown += int((v.error == np.inf).sum())
            tally.bounded += int(((v.error > 0) & (v.error < np.inf)).sum())
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            text = f"{self.name}{list(at)} is {got[at]!r}, expected {low[at]!r} … {high[at]!r} ({self.dtype}, "
            raise AssertionError(text + f"value {v.value[at]!r}, bound {v.error[at]!r}; {int(wrong.sum())} wrong)")


@dataclass
class Extent:
    """A dimension of a signature: coef·axis, a number, or tiles(axis)."""

    coef: Fraction
    axis: str | None
    tiled: bool = False


@dataclass
class Errors:
    """What one evaluation of an operation may add, in units of the last place and absolutely."""

    ulps: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    default: tuple[float, float] = (1.0, 0.0)
    division: float = 0.0
    serial_sums: bool = False  # logsumexp and Welford evaluated in f32, in any order

    def of(self, op: str) -> tuple[float, float]:
        return self.ulps.get(op, self.default)


REFERENCE = Errors()


def gpu_errors() -> Errors:
    """What the operation table states for the GPU; sums are in f32 and in any order."""
    ulps = {name: (row.gpu_ulp, row.gpu_abs) for name, row in OPS.items()}
    return Errors(ulps, division=OPS["div"].gpu_ulp, serial_sums=True)


def evaluate(
    text: str,
    arguments: Mapping[str, Any],
    tile: tuple[int, int],
    acc: Array | None = None,
    errors: Errors = REFERENCE,
    name: str = "program",
) -> dict[str, Expected]:
    """Every output, asked for or not, and every `inout` input of one call, by name."""
    file = parse(text)
    definition = next(d for d in file.definitions if isinstance(d, s.KernelDef) and d.name == name)
    with np.errstate(all="ignore"):
        return _Evaluation(file, definition, arguments, tile, acc, errors).run()


class _Evaluation:
    def __init__(
        self,
        file: s.File,
        d: s.KernelDef,
        arguments: Mapping[str, Any],
        tile: tuple[int, int],
        acc: Array | None,
        errors: Errors,
    ) -> None:
        self.d, self.tile, self.acc, self.errors = d, tile, acc, errors
        self.arguments = dict(arguments)
        self.functions = {f.name: f for f in file.definitions if isinstance(f, s.Function)}
        self.constants: dict[str, Operand] = {}
        for c in file.definitions:
            if isinstance(c, s.Const):
                number = self._constant(c.value)
                self.constants[c.name] = number if isinstance(number, int) else _number(number)
        self.params = {p.name: p for p in d.params}
        self.lengths: dict[str, int] = {}
        self.splits = {a.name: a.split for a in d.axes if isinstance(a.split, s.DimBinary)}
        self._bind()
        self.rows: Extent | None = None
        self.cols: Extent | None = None
        self._grid()

    # -- lengths and extents --

    def _extent(self, e: s.DimExpr) -> Extent:
        if isinstance(e, s.DimName):
            return Extent(Fraction(1), e.text)
        if isinstance(e, s.DimNumber):
            return Extent(Fraction(int(e.text)), None)
        if isinstance(e, s.DimTiles):
            return Extent(Fraction(1), e.axis, True)
        for axis, split in self.splits.items():
            if split == e:
                return Extent(Fraction(1), axis)
        left, right = self._extent(e.left), self._extent(e.right)
        if e.op == "/":
            return Extent(left.coef / right.coef, left.axis)
        return Extent(left.coef * right.coef, left.axis or right.axis)

    def _bind(self) -> None:
        names = {a.name for a in self.d.axes} | {f.text for x in self.splits.values() for f in (x.left, x.right)
                                                 if isinstance(f, s.DimName)}  # fmt: skip
        self.axis_names = names
        self.lengths.update({n: int(self.arguments[n]) for n in names if n in self.arguments})
        for p in self.d.params:
            if p.type.dims is None or p.name not in self.arguments:
                continue
            for e, length in zip(p.type.dims, np.shape(self.arguments[p.name]), strict=True):
                extent = self._extent(e)
                if extent.axis is not None and not extent.tiled:
                    self.lengths[extent.axis] = int(length / extent.coef)
        if self.acc is not None:
            self._bind_accumulator()
        for axis, split in self.splits.items():
            factors = [self._extent(split.left), self._extent(split.right)]
            known = [int(f.coef) if f.axis is None else self.lengths.get(f.axis) for f in factors]
            for i, j in ((0, 1), (1, 0)):
                if known[i] is None and known[j]:
                    known[i] = self.lengths[axis] // (known[j] or 1)
                    self.lengths[factors[i].axis or ""] = known[i] or 0
            if known[0] is not None and known[1] is not None:
                self.lengths.setdefault(axis, known[0] * known[1])

    def _bind_accumulator(self) -> None:
        assert self.acc is not None
        left, right, _ = self._product()
        for extent, length in zip((left[0], right[1]), self.acc.shape, strict=True):
            self.lengths.setdefault(extent.axis or "", int(length / extent.coef))

    def length(self, e: Extent) -> int:
        if e.tiled:
            assert self.rows is not None
            assert self.cols is not None
            grid, tile = (self.rows, self.tile[0]) if e.axis == self.rows.axis else (self.cols, self.tile[1])
            return math.ceil(self.length(grid) / tile)
        return int(e.coef * (1 if e.axis is None else self.lengths[e.axis]))

    def _product(self) -> tuple[list[Extent], list[Extent], list[tuple[str, bool]]]:
        """The extents of both operands as they are multiplied, and their names with whether they are transposed."""
        found = [e for st in self.d.body for e in _walk(st.value) if isinstance(e, s.Binary) and e.op == "@"]
        sides = []
        for side in (found[0].left, found[0].right):
            inner = side.operand if isinstance(side, s.Attribute) else side
            assert isinstance(inner, s.Name)
            dims = [self._extent(e) for e in self.params[inner.text].type.dims or ()]
            turned = isinstance(side, s.Attribute)
            sides.append((dims[::-1] if turned else dims, (inner.text, turned)))
        return sides[0][0], sides[1][0], [sides[0][1], sides[1][1]]

    def _grid(self) -> None:
        if self.d.kind == "kernel":
            left, right, _ = self._product()
            self.rows, self.cols = left[0], right[1]
        elif self.d.kind == "map":
            self.rows, self.cols = Extent(Fraction(1), "M"), Extent(Fraction(1), "N")

    def axis(self, e: Extent, owner: str) -> Axis:
        """What an extent is to the tile; in a reduce, its own name, and tiles(X) belongs to its input."""
        length = self.length(e) if not (e.tiled and self.d.kind == "reduce") else -1
        if self.d.kind == "reduce":
            if e.tiled:
                return Axis(f"tiles({e.axis})@{owner}", -1)
            return Axis(f"{e.coef}*{e.axis}", length)
        assert self.rows is not None
        assert self.cols is not None
        if e == self.rows:
            return Axis("row", length)
        if e.axis == self.cols.axis:
            return Axis("full", length)
        split = self.splits[self.cols.axis or ""]
        assert split is not None
        outer = self._extent(split.left)
        return Axis("outer" if e == outer else "inner", length)

    # -- the whole --

    def run(self) -> dict[str, Expected]:
        names: dict[str, Operand] = {}
        expected: dict[str, Expected] = {}
        outputs = {o.name: o for o in self.d.outputs}
        for statement in self.d.body:
            if isinstance(statement, s.Bind):
                for target, value in zip(statement.targets, self.results(statement.value, names, True), strict=True):
                    if target.text != "_":
                        names[target.text] = value
                continue
            name = statement.target.text
            target_type = self.params[name].type if statement.accumulate else outputs[name].type
            value = self.expr(statement.value, names, True)
            expected[name] = self._store(name, target_type, value, statement.accumulate)
        return expected

    def _store(self, name: str, type_: s.TypeExpr, operand: Operand, accumulate: bool) -> Expected:
        dtype = self._dtype(type_.dtype)
        value = _as_kind(operand, KINDS[dtype])
        extents = [self._extent(e) for e in type_.dims or ()]
        if any(e.tiled for e in extents) and self.d.kind != "reduce":
            return Expected(name, dtype, value)
        axes = tuple(self.axis(e, name) for e in extents)
        spread = Spread(axes)
        v, e = spread(value)
        result = Value(value.kind, axes, v, e)
        if accumulate:
            old = Value.exact("F", axes, self.arguments[name].astype(np.float64))
            result = _as_kind(self.apply("+", old, result), "F")
        return Expected(name, dtype, result)

    def _dtype(self, name: str) -> str:
        if name in KINDS:
            return name
        for p in self.d.params:
            if p.type.dtype == name and p.name in self.arguments:
                return _name_of(np.asarray(self.arguments[p.name]).dtype)
        return next(t.choices[0] for t in self.d.dtypes if t.name == name)

    # -- expressions --

    def expr(self, e: s.Expr, names: Mapping[str, Operand], top: bool) -> Operand:
        (value,) = self.results(e, names, top)
        return value

    def results(self, e: s.Expr, names: Mapping[str, Operand], top: bool) -> tuple[Operand, ...]:
        """`top` is false inside a function, which sees its arguments and constants only."""
        if isinstance(e, s.Name):
            return (self._name(e.text, names, top),)
        if isinstance(e, s.Number):
            return (int(e.text) if e.text.isdigit() else _number(float(e.text)),)
        if isinstance(e, s.Boolean):
            return (Value.exact("B", (), e.value),)
        if isinstance(e, s.Unary):
            return (self._unary(e.op, self.expr(e.operand, names, top)),)
        if isinstance(e, s.Binary):
            if e.op == "@":
                return (self._accumulator(),)
            return (self.apply(e.op, self.expr(e.left, names, top), self.expr(e.right, names, top)),)
        if isinstance(e, s.Round):
            x = _as_kind(self.expr(e.operand, names, top), "F")
            low, high = (rounded(x.value + side * x.error, e.dtype) for side in (-1, 1))
            value = rounded(x.value, e.dtype)
            error = np.maximum(np.abs(high - value), np.abs(value - low))
            # A zero of either sign: 1 / it is either infinity.
            error = np.where((value == 0) & (np.abs(x.value) <= x.error), np.maximum(error, 2.0**-149), error)
            return (Value("F", x.axes, value, _settle(value, np.where(x.error == 0, 0.0, error))),)
        if isinstance(e, s.Index):
            return (self._gather(e, self.expr(e.index, names, top)),)
        assert isinstance(e, s.Call), e
        return self._call(e, names, top)

    def _name(self, name: str, names: Mapping[str, Operand], top: bool) -> Operand:
        if name in names:
            return names[name]
        if top and name in self.params:
            return self._load(self.params[name])
        if top and name in self.axis_names:
            return self.lengths[name]
        if name in self.constants:
            return self.constants[name]
        return _number({"inf": math.inf, "nan": math.nan}[name])

    def _constant(self, e: s.Expr) -> float | int:
        if isinstance(e, s.Number):
            return int(e.text) if e.text.isdigit() else float(e.text)
        if isinstance(e, s.Name):
            known = self.constants[e.text]
            return known if isinstance(known, int) else float(known.value)
        if isinstance(e, s.Unary):
            return -self._constant(e.operand)
        assert isinstance(e, s.Binary)
        x, y = self._constant(e.left), self._constant(e.right)
        return x + y if e.op == "+" else x - y if e.op == "-" else x * y if e.op == "*" else x / y

    def _load(self, p: s.ParamDef) -> Value:
        kind = KINDS[self._dtype(p.type.dtype)]
        extents = [self._extent(e) for e in p.type.dims or ()]
        if p.name not in self.arguments:
            assert p.default is not None
            number = p.default.value if isinstance(p.default, s.Boolean) else self._constant(p.default)
            if kind == "F":
                number = float(rounded(np.asarray(float(number))))
            known = all(e.axis is None or e.axis in self.lengths for e in extents)
            axes = tuple(self.axis(e, p.name) for e in extents) if known else ()
            return Value.exact(kind, axes, np.full([a.length for a in axes], number))
        array = np.asarray(self.arguments[p.name])
        axes = tuple(self.axis(e, p.name) for e in extents)
        axes = tuple(Axis(a.label, n) for a, n in zip(axes, array.shape, strict=True))
        if kind == "F":
            array = array.astype(np.float64)
            if p.type.dims is None:
                array = rounded(array)
        return Value.exact(kind, axes, array)

    def _accumulator(self) -> Value:
        left, right, operands = self._product()
        axes = (Axis("row", self.length(left[0])), Axis("full", self.length(right[1])))
        if self.acc is not None:
            return Value.exact("F", axes, self.acc.astype(np.float64))
        sides = []
        for name, turned in operands:
            x = np.asarray(self.arguments[name]).astype(np.float64)
            sides.append(x.T if turned else x)
        a, b = sides
        value = np.zeros((a.shape[0], b.shape[1]))
        for k in range(a.shape[1]):
            value = value + a[:, k][:, None] * b[k][None, :]
        size = np.abs(a) @ np.abs(b)
        k = a.shape[1]
        exact = _multiples(a) * _multiples(b) * 2.0**24 > size
        bound = _gamma(k) * size + k * TINY
        bound = np.where(exact & np.isfinite(size), 0.0, np.where(np.isfinite(value), bound, 0.0))
        bound = np.where(np.isfinite(value) & (size > 1e38), np.inf, bound)
        return Value("F", axes, rounded(value), bound)

    def _gather(self, e: s.Index, operand: Operand) -> Value:
        p = self.params[e.table]
        index = _as_kind(operand, "I")
        if p.name not in self.arguments:
            return _number(float(rounded(np.asarray(float(self._constant(p.default or s.Number("0")))))))
        table = np.asarray(self.arguments[e.table]).astype(np.float64)
        extents = [self._extent(x) for x in p.type.dims or ()][1:]
        columns = tuple(self.axis(x, p.name) for x in extents)
        axes = (*index.axes, *columns)
        rows = np.full((index.value.size, *table.shape[1:]), np.nan)
        for i, n in enumerate(index.value.reshape(-1)):
            if 0 <= n < len(table):
                rows[i] = table[n]
        value = Value.exact("F", axes, rows.reshape([a.length for a in axes]))
        doubt = index.error.reshape(index.error.shape + (1,) * len(columns)) > 0
        value.error = np.where(doubt, np.inf, value.error) + np.zeros(value.value.shape)
        return value

    # -- calls --

    def _call(self, e: s.Call, names: Mapping[str, Operand], top: bool) -> tuple[Operand, ...]:
        name = e.function
        over = next((a.value for a in e.arguments if a.name == "over"), None)
        given = [(a.name, self.expr(a.value, names, top)) for a in e.arguments if a.name != "over"]
        if name in self.functions:
            return self._function(self.functions[name], given)
        args = [x for _, x in given]
        if over is not None:
            return self._reduction(name, _as_kind(args[0], "F"), over)
        if name == "pairs":
            return self._pairs(_as_kind(args[0], "F"))
        if name == "pick":
            return (self._pick(*(_as_kind(x, k) for x, k in zip(args, "FII", strict=False))),)
        return (self.apply(name, *args),)

    def _function(self, f: s.Function, given: list[tuple[str | None, Operand]]) -> tuple[Operand, ...]:
        names: dict[str, Operand] = {}
        for i, (key, value) in enumerate(given):
            names[key or f.params[i].name] = value
        for p in f.params:
            if p.name not in names:
                assert p.default is not None
                names[p.name] = self.expr(p.default, {}, False)
        for statement in f.body:
            assert isinstance(statement, s.Bind)
            for target, value in zip(statement.targets, self.results(statement.value, names, False), strict=True):
                names[target.text] = value
        return tuple(self.expr(r, names, False) for r in f.results)

    def _unary(self, op: str, x: Operand) -> Operand:
        if op == "not":
            return self.apply("not", x)
        return -x if isinstance(x, int) else self.apply("neg", x)

    def apply(self, op: str, *operands: Operand) -> Operand:
        """A map of one or more operands, element by element of the axes they join."""
        if op in ("+", "-", "*") and all(isinstance(x, int) for x in operands):
            x, y = (int(o) for o in operands if isinstance(o, int))
            return x + y if op == "+" else x - y if op == "-" else x * y
        if op in _COMPOSED:
            return _COMPOSED[op](self, *operands)
        if op in ("row", "col"):
            return self._position(op)
        if op == "onehot":
            return self._onehot(_as_kind(operands[0], "I"))
        if op == "unpairs":
            left, right = (_as_kind(o, "F") for o in operands)
            return self._unpairs(left, right)
        if op == "f32" and isinstance(operands[0], int):
            return _as_kind(operands[0], "F")
        values = _together(op, operands)
        axes = self._join([v.axes for v in values])
        spread = Spread(axes)
        args = [spread(v) for v in values]
        kinds = [v.kind for v in values]
        kind, value, error = self._map(op, kinds, args)
        return Value(kind, axes, value, error)

    def _join(self, many: list[tuple[Axis, ...]]) -> tuple[Axis, ...]:
        if self.d.kind == "reduce":
            joined: tuple[Axis, ...] = ()
            for axes in many:
                joined += tuple(a for a in axes if a not in joined)
            return joined
        row = next((a for axes in many for a in axes if a.label == "row"), None)
        columns = {a for axes in many for a in axes if a.label != "row"}
        col = next(iter(columns), None)
        if len(columns) > 1:
            full = [a for a in columns if a.label == "full"]
            if not full:  # inner and outer meet at the width of inner
                outer, inner = (next(a for a in columns if a.label == x) for x in ("outer", "inner"))
                full = [Axis("full", outer.length * inner.length)]
            col = full[0]
        return tuple(a for a in (row, col) if a is not None)

    def _map(self, op: str, kinds: list[str], args: list[tuple[Array, Array]]) -> tuple[str, Array, Array]:
        if op == "select":
            (c, ce), (x, xe), (y, ye) = args
            value = np.where(c, x, y)
            if kinds[1] == "F":
                same = (x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)
                apart = np.where(same, 0.0, np.abs(x - y))
            else:
                same, apart = x == y, np.where(x == y, 0.0, np.inf)
            either = np.where(np.isnan(apart), np.inf, apart) + np.maximum(xe, ye)
            error = np.where(ce > 0, np.where(same & (xe == 0) & (ye == 0), 0.0, either), np.where(c, xe, ye))
            return kinds[1], value, error
        if op in _COMPARE:
            return "B", *_compared(op, args[0], args[1])
        if kinds[0] == "B" and op in ("and", "or", "not"):
            return "B", *_logic(op, args)
        if op == "f32":
            x, e = args[0]
            return "F", rounded(x.astype(np.float64)) if kinds[0] == "B" else _int_to_f32(x), e
        if kinds[0] == "I":
            error = np.zeros(args[0][0].shape)
            for _, e in args:
                error = np.maximum(error, np.where(e > 0, np.inf, 0.0))
            return "I", _integer(op, [x for x, _ in args]), error
        return "F", *_float(op, args, self.errors)

    # -- class 2 --

    def _position(self, op: str) -> Value:
        extent = self.rows if op == "row" else self.cols
        assert extent is not None
        axis = Axis("row" if op == "row" else "full", self.length(extent))
        return Value.exact("I", (axis,), np.arange(axis.length))

    def _onehot(self, index: Value) -> Value:
        assert self.rows is not None
        assert self.cols is not None
        axes = (Axis("row", self.length(self.rows)), Axis("full", self.length(self.cols)))
        at, doubt = Spread(axes)(index)
        value = Value.exact("F", axes, np.where(np.indices(at.shape)[1] == at, 1.0, 0.0))
        value.error = np.where(doubt > 0, np.inf, 0.0)
        return value

    def _pick(self, x: Value, index: Value, ignore: Value | None = None) -> Value:
        rows = x.axes[0]
        at, doubt = Spread((rows,))(index)
        value, error = np.full(rows.length, np.nan), np.zeros(rows.length)
        for m, n in enumerate(at):
            if ignore is not None and n == ignore.value:
                value[m] = 0.0
            elif 0 <= n < x.value.shape[1]:
                value[m], error[m] = x.value[m, n], x.error[m, n]
        return Value("F", (rows,), value, np.where(doubt > 0, np.inf, error))

    # -- pairs --

    def _pairs(self, x: Value) -> tuple[Value, Value]:
        col = x.axes[-1]
        axes = (*x.axes[:-1], Axis(col.label, col.length // 2))
        at = 2 * np.arange(col.length // 2)
        even, odd = (Value("F", axes, x.value[..., at + k], x.error[..., at + k]) for k in (0, 1))
        return even, odd

    def _unpairs(self, x: Value, y: Value) -> Value:
        axes = self._join([x.axes, y.axes])
        spread = Spread(axes)
        col = axes[-1]
        wide = (*axes[:-1], Axis(col.label, 2 * col.length))
        value, error = (np.empty([a.length for a in wide]) for _ in range(2))
        for k, side in enumerate((x, y)):
            v, e = spread(side)
            at = 2 * np.arange(col.length) + k
            value[..., at], error[..., at] = v, e
        return Value("F", wide, value, error)

    # -- reductions --

    def _reduction(self, name: str, x: Value, over: s.Expr) -> tuple[Value, ...]:
        if self.d.kind == "reduce":
            text = _over_text(over)
            at = next(i for i, a in enumerate(x.axes) if a.label.split("@")[0].removeprefix("1*") == text)
            axes = x.axes[:at] + x.axes[at + 1 :]
            value, error = np.moveaxis(x.value, at, -1), np.moveaxis(x.error, at, -1)
            return tuple(Value("F", axes, v, e) for v, e in self._reduced(name, value, error))
        assert self.rows is not None
        assert self.cols is not None
        if name == "segment_sum":
            split = self.splits[self.cols.axis or ""]
            heads = self.axis(self._extent(split.left), "")
            columns = x.value.shape[1] // heads.length if heads.length else 0
            shape = (x.value.shape[0], heads.length, columns)
            ((v, e),) = self._reduced("sum", x.value.reshape(shape), x.error.reshape(shape))
            return (Value("F", (x.axes[0], heads), v, e),)
        along_rows = _over_text(over) == self.rows.axis
        at = 0 if along_rows else 1
        whole = self.length(self.rows if along_rows else self.cols)
        width = self.tile[0] if along_rows else self.tile[1] * x.value.shape[1] // whole if whole else 1
        parts = []
        for start in range(0, x.value.shape[at], width or 1):
            cut = np.arange(start, min(start + width, x.value.shape[at]))
            v, e = (np.moveaxis(np.take(y, cut, at), at, -1) for y in (x.value, x.error))
            parts.append(self._reduced(name.removeprefix("tile_"), v, e))
        tiles = Axis("tiles", len(parts))
        axes = (tiles, x.axes[1]) if along_rows else (x.axes[0], tiles)
        if not parts:
            empty = np.zeros([a.length for a in axes])
            return tuple(Value("F", axes, empty, empty) for _ in range(3 if name == "tile_welford" else 1))
        results = []
        for i in range(len(parts[0])):
            value, error = (np.stack([part[i][j] for part in parts], at) for j in (0, 1))
            results.append(Value("F", axes, value, error))
        return tuple(results)

    def _reduced(self, name: str, x: Array, e: Array) -> list[tuple[Array, Array]]:
        """A reduction along the last axis: its results and their bounds."""
        n = x.shape[-1]
        if name == "sum":
            return [_sum(x, e)]
        if name in ("max", "min", "absmax"):
            sign = -1.0 if name == "min" else 1.0
            y = np.abs(x) if name == "absmax" else sign * x
            top, error = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])
            for i in range(n):
                top, error = _larger((top, error), (y[..., i], e[..., i]))
            return [(sign * top, error)]
        if name == "logsumexp":
            return [_logsumexp(x, e, self.errors)]
        assert name == "welford", name
        total, total_error = _sum(x, e)
        mean64 = np.vectorize(math.fsum, signature="(n)->()", otypes=[float])(np.where(np.isfinite(x), x, 0.0)) / n
        mean64 = np.where(np.isfinite(x).all(-1), mean64, x.sum(-1) / n)
        shift = e.max(-1)
        serial = _gamma(2 * n + 8) if self.errors.serial_sums else 0.0
        mean_error = np.where(
            np.isfinite(mean64), shift + ulp(mean64) + serial * np.abs(x).mean(-1), np.where(shift > 0, np.inf, 0.0)
        )
        off = x - mean64[..., None]
        m2 = (off * off).sum(-1)
        slack = (e * (2 * np.abs(off) + e)).sum(-1) + 2.0**-45 * m2
        drift = mean_error if self.errors.serial_sums else np.zeros_like(m2)
        slack = slack + serial * 4 * m2 + 2 * np.sqrt(m2 * n) * drift + n * drift * drift
        m2_error = np.where(np.isfinite(m2), slack + ulp(m2), np.where(shift > 0, np.inf, 0.0))
        count = np.full(mean64.shape, float(n))
        big = np.abs(total) + total_error > 1e38
        m2_error = np.where((m2 > 1e38) & np.isfinite(m2) | big & np.isfinite(mean64), np.inf, m2_error)
        mean_error = np.where(big & np.isfinite(mean64), np.inf, mean_error)
        if self.errors.serial_sums:  # merging means: ∞ and a finite one give ∞ or NaN, and large ones overflow
            lost = np.isinf(mean64) | (np.where(np.isfinite(x), np.abs(x), 0.0).sum(-1) > 1e38) & ~np.isnan(mean64)
            mean_error = np.where(lost, np.inf, mean_error)
        return [(count, np.zeros(count.shape)), (rounded(mean64), mean_error), (rounded(m2), m2_error)]


# -- elementary pieces -----------------------------------------------------------------------------------------------


def _walk(e: s.Expr) -> list[s.Expr]:
    children: list[s.Expr] = []
    if isinstance(e, (s.Unary, s.Attribute, s.Round)):
        children = [e.operand]
    elif isinstance(e, s.Binary):
        children = [e.left, e.right]
    elif isinstance(e, s.Call):
        children = [a.value for a in e.arguments]
    elif isinstance(e, s.Index):
        children = [e.index]
    return [e, *(x for c in children for x in _walk(c))]


def _over_text(e: s.Expr) -> str:
    if isinstance(e, s.Call):
        (argument,) = e.arguments
        assert isinstance(argument.value, s.Name)
        return f"tiles({argument.value.text})"
    assert isinstance(e, (s.Name, s.Number))
    return e.text


def _name_of(dtype: np.dtype[Any]) -> str:
    floats = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    small = {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
    return {**floats, **small, "int32": "i32", "int64": "i64", "bool": "bool"}[dtype.name]


def _number(x: float) -> Value:
    return Value.exact("F", (), float(rounded(np.asarray(x))))


def _as_kind(x: Operand, kind: str) -> Value:
    if isinstance(x, Value):
        return x
    return Value.exact("I", (), x) if kind == "I" else Value.exact("F", (), float(rounded(np.asarray(float(x)))))


def _together(op: str, operands: tuple[Operand, ...]) -> list[Value]:
    """Literals take the kind of what they meet, or become floats."""
    integers = ("idiv", "%")
    known = next((x.kind for x in operands[1 if op == "select" else 0 :] if isinstance(x, Value)), "F")
    return [_as_kind(x, "I" if op in integers or known == "I" else "F") for x in operands]


def _gamma(n: int) -> float:
    return n * U / (1 - n * U)


def _multiples(x: Array) -> float:
    """The largest power of two that every finite element is a multiple of (capped at 1)."""
    finite = np.abs(x[np.isfinite(x) & (x != 0)])
    if not finite.size:
        return 1.0
    m, exponent = np.frexp(finite)
    bits = np.ldexp(m, 53).astype(np.int64)
    _, low = np.frexp((bits & -bits).astype(np.float64))
    return float(np.ldexp(1.0, min(0, int((exponent - 53 + low - 1).min()))))


def _settle(value: Array, error: Array) -> Array:
    """A bound that is no number, or would reach past f32, says nothing; certain results keep 0."""
    error = np.where(np.isnan(error), np.inf, error)
    reach = (error > 0) & (np.abs(value) + error > FORMATS["f32"].largest)
    return np.where(reach | (error > 0) & ~np.isfinite(value), np.inf, error)


def _larger(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    """IEEE maximum, with +0 above −0."""
    (a, ae), (b, be) = x, y
    top = np.where(a > b, a, np.where(b > a, b, np.where(np.signbit(a), b, a)))
    value = np.where(np.isnan(a) | np.isnan(b), np.nan, top)
    certain = np.isnan(a) & (ae == 0) | np.isnan(b) & (be == 0)
    apart = (a - ae > b + be) | (b - be > a + ae)
    error = np.where(apart, np.where(a > b, ae, be), np.maximum(ae, be))
    return value, _settle(value, np.where(certain, 0.0, error))


def _compared(op: str, x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, ae), (b, be) = x, y
    value = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
    certain = (ae == 0) & (be == 0)
    if a.dtype.kind == "f":
        certain |= (a + ae < b - be) | (a - ae > b + be)
        certain |= np.isnan(a) & (ae == 0) | np.isnan(b) & (be == 0)
    return value, np.where(certain, 0.0, np.inf)


def _logic(op: str, args: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    if op == "not":
        return ~args[0][0], args[0][1]
    (a, ae), (b, be) = args
    if op == "and":
        decided = ~a & (ae == 0) | ~b & (be == 0)
        return a & b, np.where(decided, 0.0, np.maximum(ae, be))
    decided = a & (ae == 0) | b & (be == 0)
    return a | b, np.where(decided, 0.0, np.maximum(ae, be))


def _wrap(x: Array) -> Array:
    """Python integers to i64, modulo 2⁶⁴."""
    x = np.asarray(x, object)
    flat = [(int(n) + 2**63) % 2**64 - 2**63 for n in x.reshape(-1)]
    return np.asarray(flat, np.int64).reshape(x.shape)


def _integer(op: str, args: list[Array]) -> Array:
    big = [x.astype(object) for x in args]
    a, b = big[0], big[-1]
    if op in ("idiv", "%"):
        one = np.where(b == 0, 1, b)
        quotient = np.where(b == 0, 0, a // one)
        return _wrap(quotient if op == "idiv" else np.where(b == 0, 0, a - one * quotient))
    if op in ("min", "max"):
        return np.where((a < b) == (op == "min"), args[0], args[1])
    if op == "abs":
        return _wrap(np.where(a < 0, -a, a))
    return _wrap(-a if op == "neg" else a + b if op == "+" else a - b if op == "-" else a * b)


def _int_to_f32(x: Array) -> Array:
    """To nearest even, in one rounding: an i64 need not fit f64."""
    small = np.abs(x) < 2**53
    if small.all():
        return rounded(x.astype(np.float64))
    exact = np.vectorize(lambda n: float(_round_rational(Fraction(int(n)))), otypes=[np.float64])
    return np.where(small, rounded(x.astype(np.float64)), exact(x))


def _round_rational(x: Fraction) -> float:
    """A rational number rounded once to f32 (nearest even), within its range."""
    if x == 0:
        return 0.0
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    if abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    last = Fraction(2) ** (max(exponent, -126) - 23)
    y = float(round(abs(x) / last) * last)
    return math.copysign(y if y <= FORMATS["f32"].largest else math.inf, x)  # what underflows keeps its sign


def _fused(x: Array, y: Array, z: Array) -> Array:
    """x·y + z, rounded once."""
    total = x * y + z  # x·y is exact in f64
    near = rounded(total)
    other = total - near
    # Rounding twice errs only where f64 lands on, or next to, the middle of two f32 numbers; or among the subnormals.
    middle = np.abs(other) >= ulp(total) * 0.499999
    doubtful = np.isfinite(total) & (middle | (np.abs(total) < 2.0**-120)) & (total != 0)
    doubtful |= np.isfinite(x * y) & np.isfinite(z) & (total == 0) & (z != 0)
    for at in np.argwhere(doubtful):
        i = tuple(at)
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
        near[i] = _round_rational(exact) if exact else near[i]
    return near


_COMPARE = ("==", "!=", "<", "<=", ">", ">=")
_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "ndtr": lambda x: 0.5 * torch.erfc(-math.sqrt(0.5) * x),
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1.0 / torch.sqrt(x),  # keeps the sign of zero
    "sigmoid": torch.sigmoid,
}


def _torch(op: str, x: Array) -> Array:
    return np.asarray(_TORCH[op](torch.from_numpy(np.ascontiguousarray(x))).numpy()).reshape(x.shape)


def _float(op: str, args: list[tuple[Array, Array]], errors: Errors) -> tuple[Array, Array]:
    """A map of floats and the bound on its result."""
    if op == "neg":
        return -args[0][0], args[0][1]
    if op == "abs":
        return np.abs(args[0][0]), args[0][1]
    if op in ("max", "min"):
        sign = 1.0 if op == "max" else -1.0
        (a, ae), (b, be) = args
        value, error = _larger((sign * a, ae), (sign * b, be))
        return sign * value, error
    if op in _TORCH:
        return _transcendental(op, args[0], errors)
    x, xe = args[0]
    y, ye = args[1]
    inexact = (xe > 0) | (ye > 0)
    if op in ("+", "-"):
        wide = x + y if op == "+" else x - y
        carried = xe + ye
    elif op == "*":
        wide = x * y
        carried = np.abs(x) * ye + np.abs(y) * xe + xe * ye
    elif op == "/":
        wide = x / y
        room = np.abs(y) - ye
        carried = np.where(room > 0, (xe + np.abs(wide) * ye) / np.where(room > 0, room, 1.0), np.inf)
    else:
        assert op == "fma", op
        z, ze = args[2]
        inexact |= ze > 0
        value = _fused(x, y, z)
        carried = np.abs(x) * ye + np.abs(y) * xe + xe * ye + ze
        return value, _finish(value, carried, inexact)
    value = rounded(wide)
    if op == "/" and errors.division:
        extra = errors.division * ulp(value) + np.where(np.abs(y) > 2.0**126, np.abs(value), 0.0)
        carried = np.where(np.isfinite(value) & (value != 0), carried + extra, carried)
        inexact = inexact | (np.isfinite(value) & (value != 0))
    return value, _finish(value, carried, inexact)


def _finish(value: Array, carried: Array, inexact: Array) -> Array:
    """The bound of a rounded result: what the operands carry, and both roundings."""
    error = carried + U * (2 * np.abs(value) + carried) + TINY
    certain = ~inexact
    return np.where(certain, 0.0, _settle(value, np.where(certain, 0.0, error)))


def _transcendental(op: str, arg: tuple[Array, Array], errors: Errors) -> tuple[Array, Array]:
    x, e = arg
    wide = _torch(op, x)
    value = rounded(wide)
    lo, hi = _torch(op, x - e), _torch(op, x + e)
    carried = np.where(e > 0, np.maximum(np.abs(lo - wide), np.abs(hi - wide)), 0.0)
    ulps, absolute = errors.of(op)
    if op == "sqrt" and not errors.ulps:
        ulps = 0.0  # correctly rounded
    step = ulps * np.maximum(ulp(value), ulp(np.abs(wide) + np.where(np.isfinite(carried), carried, 0.0))) + absolute
    finite = np.isfinite(value)
    known = (e == 0) & (~np.isfinite(x) | np.isnan(value) | np.isinf(wide))
    overflow = (np.abs(wide) > 3.0e38) & ~known
    error = np.where(known & ~finite, 0.0, carried + step)
    error = np.where(known & (ulps + absolute == 0), 0.0, error)
    return value, np.where(overflow, np.inf, _settle(value, error))


def _sum(x: Array, e: Array) -> tuple[Array, Array]:
    """Σ along the last axis in any order."""
    n = x.shape[-1]
    flat = x.reshape(math.prod(x.shape[:-1]), n)
    totals = [math.fsum(row) if np.isfinite(row).all() else float(row.sum()) for row in flat]
    value = np.asarray(totals, np.float64).reshape(x.shape[:-1])
    size = (np.abs(x) + e).sum(-1)
    exact = np.asarray([_multiples(row) * 2.0**24 >= np.abs(row).sum() for row in flat], bool).reshape(value.shape)
    carried = e.sum(-1)
    bound = carried + _gamma(max(n, 1)) * size + U * np.abs(value)
    finite = np.where(np.isfinite(x), np.abs(x), 0.0).sum(-1)
    special = ~np.isfinite(x).all(-1) & (finite < 3.0e38)  # else finite terms may overflow to the other infinity
    certain = (special | exact) & (carried == 0)
    error = np.where(certain, 0.0, _settle(rounded(value), bound))
    nan = (np.isnan(x) & (e == 0)).any(-1)
    error = np.where(nan, 0.0, error)
    # Zeros of both signs add up to +0 or −0 by their order; only a sum of nothing but −0 is −0.
    value = np.where(value == 0, np.where(np.signbit(x).all(-1) & (n > 0), value, 0.0), value)
    minus = (value == 0) & np.signbit(x).all(-1) & (n > 0)
    error = np.where(minus & (error == 0), TINY / 4, error)  # a start from +0 gives +0
    return rounded(value), np.where(~special & (size > 3.0e38), np.inf, error)


def _logsumexp(x: Array, e: Array, errors: Errors) -> tuple[Array, Array]:
    top = x.max(-1)
    shift = np.where(np.isfinite(top), top, 0.0)[..., None]
    weights = np.exp(x - shift)
    total = weights.sum(-1)
    wide = np.log(total) + shift[..., 0]
    wide = np.where(np.isposinf(top), np.inf, wide)
    value = rounded(wide)
    spread = e.max(-1)
    error = spread + ulp(value) + 2.0**-45 * (1 + np.abs(wide))
    if errors.serial_sums:
        distance = np.where(np.isfinite(x), np.abs(x - shift), 0.0)
        away = (weights * distance).sum(-1) / np.where(total > 0, total, 1.0)
        error = error + (x.shape[-1] + 32) * 2 * U + 4 * U * np.abs(wide) + 2 * U * away + 2.0**-22
        # A power of e is computed as one of 2, and x·log₂e overflows.
        far = (np.where(np.isfinite(x), np.abs(x), 0.0) > 1e38).any(-1)
        error = np.where(far, np.inf, error)
        wide = np.where(far & np.isinf(wide), 0.0, wide)
    certain = ~np.isfinite(wide) & (spread == 0)
    return value, np.where(certain, 0.0, _settle(value, error))


# -- functions of the language, from their definitions -----------------------------------------------------------------


_COMPOSED: dict[str, Callable[..., Operand]] = {
    "reciprocal": lambda v, x: v.apply("/", _number(1.0), x),
    "clamp": lambda v, x, lo, hi: v.apply("min", v.apply("max", x, lo), hi),
    "relu": lambda v, x: v.apply("max", x, _number(0.0)),
    "relu_sq": lambda v, x: v.apply("*", v.apply("relu", x), v.apply("relu", x)),
    "silu": lambda v, x: v.apply("*", x, v.apply("sigmoid", x)),
    "gelu": lambda v, x: v.apply("*", x, v.apply("ndtr", x)),
    "gelu_tanh": lambda v, x: v.apply(
        "*",
        x,
        v.apply(
            "sigmoid",
            v.apply(
                "*",
                _number(2 * math.sqrt(2 / math.pi)),
                v.apply("+", x, v.apply("*", v.apply("*", v.apply("*", _number(0.044715), x), x), x)),
            ),
        ),
    ),
    "quick_gelu": lambda v, x: v.apply("*", x, v.apply("sigmoid", v.apply("*", _number(1.702), x))),
    "softplus": lambda v, x: v.apply(
        "+", v.apply("relu", x), v.apply("log1p", v.apply("exp", v.apply("neg", v.apply("abs", x))))
    ),
    "softcap": lambda v, x, c: v.apply("*", c, v.apply("tanh", v.apply("/", x, c))),
    "rope": lambda v, x, cos, sin: _rope(v, x, cos, sin),
}


def _rope(v: _Evaluation, x: Value, cos: Operand, sin: Operand) -> Operand:
    p, q = v._pairs(x)
    left = v.apply("-", v.apply("*", p, cos), v.apply("*", q, sin))
    right = v.apply("+", v.apply("*", p, sin), v.apply("*", q, cos))
    return v.apply("unpairs", left, right)
