"""Random programs that the checker must accept, random shapes for them, and data.

`random_program(seed)` is a program's text, the same for a seed on every machine; `programs()` is the Hypothesis
strategy, which shrinks. A program has a spine: a chain of at least `DEPTH` operations from the accumulator (or a tile
input) to a store, which side values join and side stores leave: vectors, tiles of every width, head-wise values, table
rows, integers, bools, functions and reductions. "exact" programs use only operations whose results are equal to the
bit on every backend; "any" programs use the transcendentals and division as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from coda_lang.ir.program import Kernel, Param
from coda_lang.ir.types import Dim

Array = NDArray[Any]

DEPTH = 30
HALF, ONE, TWO = Fraction(1, 2), Fraction(1), Fraction(2)
FLAVOURS = ("exact", "any")
OPERANDS = ("bf16", "f16", "T", "f8e4m3", "f8e5m2")
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23)
TILES = ((1, 2), (2, 4), (3, 2), (4, 8), (5, 6), (7, 16), (128, 256))
MODES = ("integers", "normal", "special")

_NUMPY = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}
_SPECIALS = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -3e-40, 3.4e38, -3.4e38, 6e-8, 1.0, -1.0,
)  # fmt: skip


def random_program(seed: int, flavour: str | None = None, kind: str | None = None) -> str:
    """The text of one program. `kind` is "kernel", "map" or "reduce"; what is left out is drawn too."""
    return write(random.Random(seed), flavour, kind)


@st.composite
def programs(draw: st.DrawFn, flavour: str | None = None, kind: str | None = None) -> str:
    return write(draw(st.randoms(use_true_random=False)), flavour, kind)


def write(rng: random.Random, flavour: str | None = None, kind: str | None = None) -> str:
    flavour = flavour or rng.choice(FLAVOURS)
    kind = kind or rng.choice(("kernel", "kernel", "kernel", "map", "reduce"))
    return _Reduce(rng, flavour).text() if kind == "reduce" else _Epilogue(rng, flavour, kind).text()


# -- programs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column extent: the accumulator's times `width`, or the part of a head (`inner`, `outer`)."""

    part: str
    width: Fraction = ONE


FULL = Column("full")


@dataclass(frozen=True)
class Side:
    """An expression: its kind F, I or B, whether it varies by row, and along which columns."""

    text: str
    kind: str
    row: bool = False
    col: Column | None = None


@dataclass
class _Writer:
    """What kernels and reduces share: constants, functions, and picking."""

    rng: random.Random
    flavour: str
    constants: list[str] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)  # name, arguments, results
    head: list[str] = field(default_factory=list)
    fresh: int = 0

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def literal(self) -> str:
        choices = ["0.5", "2", "1.0", "-1.5", "0.25", "3", "0.0", "-2.0", "1e-3", "0.7071067811865476", *self.constants]
        return self.rng.choice(choices)

    def unary(self, x: str) -> str:
        """A float map of one argument whose result is not large where its argument is not."""
        exact = [
            f"-{_atom(x)}", f"abs({x})", f"relu({x})", f"clamp({x}, -3.0, 5)", f"round<bf16>({x})", f"round<f16>({x})",
            f"{_atom(x)} * 0.5", f"min({x}, 4)", f"max({x}, -4.0)", f"round<f8e4m3>({x})", f"round<f8e5m2>({x})",
        ]  # fmt: skip
        smooth = [
            f"tanh({x})", f"sigmoid({x})", f"silu({x})", f"gelu({x})", f"gelu_tanh({x})", f"erf({x})", f"erfc({x})",
            f"ndtr({x})",
            f"exp(-abs({x}))", f"exp2(min({x}, 3.0))", f"log1p(abs({x}))", f"sqrt(abs({x}))", f"softplus({x})",
            f"rsqrt(abs({x}) + 0.5)", f"log(abs({x}) + 1.0)", f"log2(abs({x}) + 2)", f"quick_gelu({x})",
            f"softcap({x}, 3.0)", f"reciprocal(abs({x}) + 1.0)", f"{_atom(x)} / 3.0",
        ]  # fmt: skip
        return self.rng.choice(exact if self.flavour == "exact" or self.chance(0.5) else smooth)

    def binary(self, x: str, y: str) -> str:
        a, b = _atom(x), _atom(y)
        exact = [
            f"{a} + {b}", f"{b} + {a}", f"{a} - {b}", f"{b} - {a}", f"{a} * {b}", f"min({x}, {y})", f"max({y}, {x})",
            f"fma({x}, 0.5, {y})", f"fma({y}, {self.literal()}, {x})", f"{a} + 0.25 * {b}",
            f"select({a} < {b}, {x}, {y})", f"select({a} >= {self.literal()}, {x}, {y})",
            f"select({a} == {b} or not {a} > 0, {y}, {x})", f"select({a} != 0.0 and {b} <= 1, {x}, {self.literal()})",
        ]  # fmt: skip
        other = [f"{a} / (abs({y}) + 0.5)", f"{a} / {b}", f"{a} * sigmoid({y})", f"{a} - tanh({y})"]
        return self.rng.choice(exact if self.flavour == "exact" or self.chance(0.7) else other)

    def preamble(self) -> None:
        for _ in range(self.rng.randrange(3)):
            name = self.name("C")
            value = self.rng.choice(["0.75", "-1.25", "3", "2 * 0.5", "1 - 4"] + [f"-{c} / 2" for c in self.constants])
            self.head.append(f"const {name} = {value}")
            self.constants.append(name)
        for _ in range(self.rng.randrange(3)):
            name = self.name("h")
            if self.chance(0.5):
                body = self.binary(self.unary("x"), "y")
                default = f" = {self.literal()}" if self.chance(0.4) else ""
                self.head.append(f"fn {name}(x, y{default}) = {body}")
                self.functions.append((name, 2, 1))
            else:
                self.head.append(f"fn {name}(x, y) {{\n    u = {self.binary('x', 'y')}\n    v = {self.unary('u')}")
                self.head[-1] += f"\n    return v, {self.binary('u', 'y')}\n}}"
                self.functions.append((name, 2, 2))


def _atom(x: str) -> str:
    """Parenthesised, unless it is a name, a literal or a call."""
    simple = x.replace("_", "").replace(".", "").isalnum()
    return x if simple else f"({x})"


class _Epilogue(_Writer):
    """A kernel or a map."""

    def __init__(self, rng: random.Random, flavour: str, kind: str) -> None:
        super().__init__(rng, flavour)
        self.kind = kind
        self.split = rng.choice(("", "", "H * D", "H * 4", "3 * D"))
        product = kind == "kernel"  # a map's tile is [M, N]
        self.scale = TWO if product and not self.split and self.chance(0.15) else ONE
        self.rows = "2*M" if product and self.chance(0.15) else "M"
        self.params: list[str] = []
        self.leaves: list[Side] = []
        self.outputs: list[str] = []
        self.body: list[str] = []
        self.pool: list[Side] = []
        self.dtype_params: set[str] = set()
        self.uses_tables = False
        self.ignore = False

    # -- extents --

    def column(self, col: Column) -> str:
        if col.part == "full":
            return _times(col.width * self.scale, "N")
        outer, inner = self.split.split(" * ")
        if col.part == "outer":
            return outer
        return str(int(inner) * col.width) if inner.isdigit() else _times(col.width, inner)

    def extents(self, row: bool, col: Column | None) -> str:
        parts = ([self.rows] if row else []) + ([self.column(col)] if col is not None else [])
        return f"[{', '.join(parts)}]"

    def meets(self, col: Column | None, spine: Column) -> bool:
        """Whether a side value of these columns joins the spine without changing its width."""
        return col is None or col == spine or (spine.part == "full" and col.part != "full" and self._same(col, spine))

    @staticmethod
    def _same(col: Column, spine: Column) -> bool:
        return col.part == "outer" or col.width == spine.width

    # -- leaves --

    def leaf(self, kind: str, row: bool, col: Column | None, wanted: str = "") -> Side:
        """An input of these extents: one that there is, or a new one. `wanted` is a domain."""
        found = [x for x in self.leaves if (x.kind, x.row, x.col) == (kind, row, col)]
        if found and not wanted and self.chance(0.6):
            return self.rng.choice(found)
        name = self.name({"F": "x", "I": "k", "B": "p"}[kind])
        dtype = {"F": self.float_type(), "I": self.int_type(), "B": "bool"}[kind]
        default = ""
        if not wanted and self.chance(0.2):
            default = {"F": f" = {self.rng.choice(('0', '1.5', '-0.5', '2'))}", "I": " = 3", "B": " = true"}[kind]
        if not row and col is None and kind != "B" and self.chance(0.5):
            dtype = "f32" if kind == "F" else self.rng.choice(("i32", "i64"))
            self.params.append(f"{name}: {dtype}{default}")
        else:
            domain = " > 0" if kind == "F" and not default and self.chance(0.1) else wanted
            self.params.append(f"{name}: {dtype}{self.extents(row, col)}{domain}{default}")
        leaf = Side(name, kind, row, col)
        if not wanted:
            self.leaves.append(leaf)
        return leaf

    def float_type(self) -> str:
        choices = ["f32", "f32", "f32", "bf16", "f16", "f8e4m3", "f8e5m2"]
        return self.rng.choice([*choices, *(["T"] * 3 if "T" in self.dtype_params else [])])

    def int_type(self) -> str:
        return self.rng.choice(("i32", "i64"))

    def table(self, col: Column | None) -> str:
        """A table's row at an index: `t[i]`, or `t[i, ...]` with columns."""
        self.uses_tables = True
        name = self.name("t")
        extents = "[P]" if col is None else f"[P, {self.column(col)}]"
        self.params.append(f"{name}: {self.float_type()}{extents}")
        index = self.leaf("I", True, None, " in 0..P" if self.chance(0.6) else "").text
        if self.chance(0.2):
            index = self.rng.choice(("row()", f"{index} + 1", "2"))
        return f"{name}[{index}]" if col is None else f"{name}[{index}, ...]"

    def target(self) -> str:
        """An integer for each row that names a column."""
        return self.leaf("I", True, None, f" in 0..{self.column(FULL)}" if self.chance(0.7) else "").text

    # -- side values --

    def shapes(self, spine: Column) -> list[tuple[bool, Column | None]]:
        cols: list[Column | None] = [None, spine]
        if self.split and spine.part == "full":
            cols.append(Column("outer"))
            if self.widths_of_head(spine.width):
                cols.append(Column("inner", spine.width))
        return [(row, col) for row in (True, False) for col in cols]

    def widths_of_head(self, width: Fraction) -> bool:
        return width in (HALF, ONE, TWO)

    def side(self, spine: Column) -> Side:
        """A float that joins the spine."""
        pick = self.rng.random()
        if pick < 0.15:
            return Side(self.literal(), "F")
        if pick < 0.45:
            near = [x for x in self.pool if x.kind == "F" and self.meets(x.col, spine)]
            if near:
                return self.rng.choice(near)
        if pick < 0.53:
            return Side(f"f32({self.integer(spine, 2).text})", "F")
        if pick < 0.58:
            return Side(self.table(self.rng.choice((None, spine))), "F")
        if pick < 0.62 and spine == FULL:
            return Side(f"onehot({self.target()})", "F")
        if pick < 0.65:
            return Side(self.rng.choice(("M", "N + 1", "2 * N")), "F")
        return self.leaf("F", *self.rng.choice(self.shapes(spine)))

    def integer(self, spine: Column, depth: int) -> Side:
        pick = self.rng.random()
        if depth == 0 or pick < 0.3:
            if pick < 0.1 and spine == FULL:
                return Side("col()", "I", False, FULL)
            if pick < 0.2:
                return Side("row()", "I", True)
            return self.leaf("I", *self.rng.choice(self.shapes(spine)))
        x, y = (_atom(self.integer(spine, depth - 1).text) for _ in range(2))
        forms = (
            f"{x} + {y}", f"{x} - 3", f"2 * {x}", f"{x} * 10007", f"{x} % 5", f"{x} % {y}", f"idiv({x}, 3)",
            f"idiv({x}, {y})", f"min({x}, {y})", f"max({x}, 2)", f"abs({x})", f"-{x}", f"select({x} < {y}, {x}, 7)",
        )  # fmt: skip
        return Side(self.rng.choice(forms), "I")

    def condition(self, spine: Column, value: str) -> str:
        pick = self.rng.random()
        if pick < 0.25:
            return self.leaf("B", *self.rng.choice(self.shapes(spine))).text
        if pick < 0.45:
            x, y = (_atom(self.integer(spine, 1).text) for _ in range(2))
            return f"{x} {self.rng.choice(('==', '!=', '<', '<=', '>', '>='))} {y}"
        if pick < 0.6:
            return f"not ({self.condition(spine, value)})"
        if pick < 0.75:
            word = self.rng.choice(("and", "or"))
            return f"({self.condition(spine, value)}) {word} ({self.condition(spine, value)})"
        return f"{value} {self.rng.choice(('<', '<=', '>', '>=', '==', '!='))} {_atom(self.side(spine).text)}"

    # -- the spine --

    def bind(self, text: str, spine: Column, stem: str = "v") -> Side:
        name = self.name(stem)
        self.body.append(f"{name} = {text}")
        value = Side(name, "F", True, spine)
        self.pool.append(value)
        return value

    def step(self, s: str, spine: Column) -> tuple[str, Column, int]:
        """One operation or a few on the spine: the new expression, its columns and how many were added."""
        pick = self.rng.random()
        if pick < 0.2:
            return self.unary(s), spine, 1
        if pick < 0.6:
            return self.binary(s, self.side(spine).text), spine, 1
        if pick < 0.7:
            x, y = self.side(spine).text, self.side(spine).text
            forms = (f"select({self.condition(spine, s)}, {s}, {x})", f"fma({s}, {x}, {y})", f"clamp({s}, -8, {y})")
            return self.rng.choice(forms), spine, 1
        if pick < 0.76 and self.functions:
            name, _, results = self.rng.choice(self.functions)
            y = self.side(spine).text
            call = f"{name}({s}, {y})" if self.chance(0.6) else f"{name}(y={y}, x={s})"
            if results == 1:
                return call, spine, 2
            left, right = self.name("v"), self.name("v")
            self.body.append(f"{left}, {right} = {call}")
            self.pool += [Side(left, "F", True, spine), Side(right, "F", True, spine)]
            return right, spine, 2
        if pick < 0.9:
            return self.move(s, spine)
        return f"{_atom(s)} * 0.125", spine, 1

    def move(self, s: str, spine: Column) -> tuple[str, Column, int]:
        """Between widths: pairs, unpairs, rope."""
        if spine.width > HALF and self.chance(0.6):
            half = Column("full", spine.width / 2)
            if self.chance(0.3):
                cos, sin = (self.leaf("F", self.chance(0.5), half).text for _ in range(2))
                return f"rope({s}, {cos}, {sin})", spine, 4
            g, u = self.name("g"), self.name("u")
            keep = self.chance(0.5)
            self.body.append(f"{g}, {u if keep else '_'} = pairs({s})")
            self.pool.append(Side(g, "F", True, half))
            if keep:
                self.pool.append(Side(u, "F", True, half))
                if self.chance(0.6):
                    return f"unpairs({self.unary(u)}, {g})", spine, 3
                return self.binary(g, u), half, 2
            return g, half, 1
        if spine.width < TWO:
            other = self.side(spine)
            text = f"unpairs({s}, {other.text})" if self.chance(0.5) else f"unpairs({other.text}, {s})"
            return text, Column("full", spine.width * 2), 1
        return self.unary(s), spine, 1

    def grow(self) -> None:
        if self.kind == "kernel":
            s, spine = self.product(), FULL
        else:
            s, spine = self.leaf("F", True, FULL).text, FULL
        depth = 0
        while depth < DEPTH:
            text, spine, added = self.step(s, spine)
            depth += added
            if len(text) > 60 or self.chance(0.5):
                s = self.bind(text, spine).text
            else:
                s = f"({text})" if not text.endswith(")") or " " in text.split("(")[0] else text
            if self.chance(0.15):
                s = self.bind(s, spine).text
                self.store(Side(s, "F", True, spine))
        self.store(self.bind(s, spine), optional=False)

    def product(self) -> str:
        dtype = self.rng.choice(OPERANDS)
        if dtype == "T":
            self.dtype_params.add("T")
        cols = self.column(FULL)
        left = self.rng.choice(((f"[{self.rows}, K]", "a"), (f"[K, {self.rows}]", "a.T")))
        right = self.rng.choice(((f"[{cols}, K]", "b.T"), (f"[K, {cols}]", "b")))
        self.params += [f"a: {dtype}{left[0]}", f"b: {dtype}{right[0]}"]
        product = f"{left[1]} @ {right[1]}"
        return self.bind(product if self.chance(0.7) else f"0.5 * ({product})", FULL, "acc").text

    # -- stores --

    def output(self, name: str, dtype: str, extents: str, optional: bool) -> None:
        self.outputs.append(f"{name}: {dtype}{extents}{'?' if optional else ''}")

    def store(self, value: Side, optional: bool | None = None) -> None:
        """Store a tile, or what can be made of it."""
        optional = self.chance(0.2) if optional is None else optional
        assert value.col is not None
        dtype = self.float_type()
        pick = self.rng.random()
        if pick < 0.12:
            name = self.name("d")
            dtype = self.rng.choice(("f32", "f32", "bf16", "f16"))
            self.params.append(f"inout {name}: {dtype}{self.extents(True, value.col)}")
            self.body.append(f"{name} +<- {value.text}")
            return
        if pick < 0.75:
            fresh = not any(o.startswith(value.text + ":") for o in self.outputs)
            name = value.text if pick < 0.5 and fresh else self.name("o")
            self.output(name, dtype, self.extents(True, value.col), optional)
            self.body.append(f"{name} <- {value.text}")
            return
        self.reduction(value, optional)

    def reduction(self, value: Side, optional: bool) -> None:
        """Class 4 and 5 stores, and a pick."""
        assert value.col is not None
        name = self.name("r")
        by_row, by_col = f"[{self.rows}, tiles(N)]", f"[tiles(M), {self.column(value.col)}]"
        along_n = [("tile_sum", by_row), ("tile_max", by_row), ("tile_absmax", by_row)]
        along_m = [("tile_sum", by_col), ("tile_max", by_col), ("tile_absmax", by_col)]
        pick = self.rng.random()
        if pick < 0.35:
            op, extents = self.rng.choice(along_n)
            text = f"{op}({value.text}, over=N)"
        elif pick < 0.55:
            op, extents = self.rng.choice(along_m)
            text = f"{op}({value.text}, over=M)"
        elif pick < 0.7:
            text, extents = f"pick({value.text}, {self.picked()})", f"[{self.rows}]"
        elif pick < 0.8 and self.split:
            inner = self.split.split(" * ")[1]
            text, extents = f"segment_sum({value.text}, over={inner})", f"[{self.rows}, {self.column(Column('outer'))}]"
        elif pick < 0.9:
            text, extents = f"tile_logsumexp({value.text}, over=N)", by_row
        else:
            names = [self.name("w") for _ in range(3)]
            self.body.append(f"{', '.join(names)} = tile_welford({value.text}, over=N)")
            for n in names:
                self.output(n, "f32", by_row, optional)
                self.body.append(f"{n} <- {n}")
            return
        self.output(name, "f32", extents, optional)
        self.body.append(f"{name} <- {text}")

    def picked(self) -> str:
        if self.chance(0.5):
            return self.target()
        if not self.ignore:
            self.ignore = True
            self.params.append("ignore: i64 = -1")
        index = self.leaf("I", True, None, f" in 0..{self.column(FULL)} or ignore").text
        return f"{index}, ignore=ignore"

    def extras(self) -> None:
        """Stores of vectors, integers and bools."""
        for _ in range(self.rng.randrange(3)):
            pick = self.rng.random()
            name = self.name("o")
            if pick < 0.3:
                x, y = self.leaf("F", True, None).text, self.leaf("F", False, None).text
                self.body.append(f"{name} <- {self.binary(x, y)}")
                self.output(name, self.float_type(), f"[{self.rows}]", self.chance(0.2))
            elif pick < 0.5:
                x, y = self.leaf("F", False, FULL).text, self.leaf("F", False, None).text
                self.body.append(f"{name} <- {self.binary(x, y)}")
                self.output(name, self.float_type(), self.extents(False, FULL), self.chance(0.2))
            elif pick < 0.65:
                self.body.append(f"{name} <- {self.integer(FULL, 2).text}")
                self.output(name, self.int_type(), self.extents(True, FULL), self.chance(0.2))
            elif pick < 0.8:
                x = self.leaf("F", True, FULL).text
                self.body.append(f"{name} <- {self.condition(FULL, x)}")
                self.output(name, "bool", self.extents(True, FULL), self.chance(0.2))
            elif self.split:
                outer = Column("outer")
                x, y = self.leaf("F", True, outer).text, self.leaf("F", self.chance(0.5), outer).text
                self.body.append(f"{name} <- {self.binary(x, y)}")
                self.output(name, self.float_type(), self.extents(True, outer), self.chance(0.2))
            else:
                x = self.leaf("F", True, None).text  # spreads along N in the store
                self.body.append(f"{name} <- {x}")
                self.output(name, self.float_type(), self.extents(True, FULL), self.chance(0.2))

    def text(self) -> str:
        self.preamble()
        self.grow()
        self.extras()
        axes = ["M", f"N = {self.split}" if self.split else "N"]
        axes += ["K"] if self.kind == "kernel" else []
        axes += ["P"] if self.uses_tables else []
        dtypes = "; T: bf16 | f16" if self.dtype_params else ""
        order = list(self.params) if self.kind == "map" else [*self.params[:2], *self._shuffled(self.params[2:])]
        return "\n".join(
            [
                *self.head,
                f'"a random {self.flavour} {self.kind}"',
                f"{self.kind} program<{', '.join(axes)}{dtypes}>(",
                *(f"    {p}," for p in order),
                f") -> ({', '.join(self.outputs)}) {{",
                *(f"    {line}" for line in self.body),
                "}\n",
            ]
        )

    def _shuffled(self, items: list[str]) -> list[str]:
        return [items[i] for i in sorted(range(len(items)), key=lambda _: self.rng.random())]


_REDUCE_AXES: tuple[tuple[str, ...], ...] = (
    ("M",), ("P",), ("N",), ("M", "P"), ("P", "M"), ("M", "tiles(N)"), ("tiles(M)", "N"), (),
)  # fmt: skip


class _Reduce(_Writer):
    """A reduce: maps and reductions over named axes and over the tiles of its inputs."""

    def __init__(self, rng: random.Random, flavour: str) -> None:
        super().__init__(rng, flavour)
        self.params: list[str] = []
        self.pool: list[tuple[str, tuple[str, ...]]] = []
        self.body: list[str] = []
        self.outputs: list[str] = []

    def leaf(self) -> tuple[str, tuple[str, ...]]:
        name = self.name("x")
        axes = self.rng.choice(_REDUCE_AXES)
        dtype = self.rng.choice(("f32", "f32", "f32", "bf16", "f16", "f8e4m3"))
        default = f" = {self.rng.choice(('0', '1.5'))}" if self.chance(0.15) and "tiles" not in str(axes) else ""
        if axes or self.chance(0.5):
            self.params.append(f"{name}: {dtype}[{', '.join(axes)}]{default}")
        else:
            self.params.append(f"{name}: f32{default}")
        # tiles(X) is opaque and fresh for each input
        return name, tuple(f"{a}@{name}" if a.startswith("tiles") else a for a in axes)

    def value(self) -> tuple[str, tuple[str, ...]]:
        if self.pool and self.chance(0.6):
            return self.rng.choice(self.pool)
        leaf = self.leaf()
        self.pool.append(leaf)
        return leaf

    def bind(self, text: str, axes: tuple[str, ...]) -> None:
        name = self.name("v")
        self.body.append(f"{name} = {text}")
        self.pool.append((name, axes))

    def spine(self) -> None:
        s, axes = self.leaf()
        depth = 0
        while depth < DEPTH:
            pick = self.rng.random()
            if axes and pick < 0.15:
                over = self.rng.choice(axes)
                s = f"{self.rng.choice(('sum', 'max', 'min'))}({s}, over={over.split('@')[0]})"
                axes = tuple(a for a in axes if a != over)
            elif pick < 0.4:
                s = self.unary(s)
            else:
                y, more = self.value()
                joined = axes + tuple(a for a in more if a not in axes)
                if len(joined) > 3 or len({a.split("@")[0] for a in joined}) < len(joined):
                    y, joined = self.literal(), axes
                s, axes = self.binary(s, y), joined
            depth += 1
            if self.chance(0.3) or len(s) > 60 or self.chance(0.4):
                self.bind(s, axes)
                s = self.pool[-1][0]
        self.bind(s, axes)

    def store(self, value: tuple[str, tuple[str, ...]]) -> None:
        text, axes = value
        for opaque in [a for a in axes if a.startswith("tiles")]:
            text = f"{self.rng.choice(('sum', 'max', 'min'))}({text}, over={opaque.split('@')[0]})"
        rest = [a for a in axes if not a.startswith("tiles")]
        if self.chance(0.3):
            rest.reverse()
        name = self.name("o")
        dtype = self.rng.choice(("f32", "f32", "bf16", "f16", "f8e5m2"))
        self.outputs.append(f"{name}: {dtype}[{', '.join(rest)}]{'?' if self.chance(0.2) else ''}")
        self.body.append(f"{name} <- {text}")

    def text(self) -> str:
        self.preamble()
        self.spine()
        last = self.pool[-1]
        self.store(last)
        for value in self._some(self.pool[:-1]):
            self.store(value)
        return "\n".join(
            [
                *self.head,
                f'"a random {self.flavour} reduce"',
                "reduce program<M, N, P>(",
                *(f"    {p}," for p in self.params),
                f") -> ({', '.join(self.outputs)}) {{",
                *(f"    {line}" for line in self.body),
                "}\n",
            ]
        )

    def _some(self, values: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
        return [v for v in values if self.chance(0.2)]


def _times(coef: Fraction, axis: str) -> str:
    up = "" if coef.numerator == 1 else f"{coef.numerator}*"
    return f"{up}{axis}" + ("" if coef.denominator == 1 else f"/{coef.denominator}")


# -- calls -----------------------------------------------------------------------------------------------------------


@dataclass
class RandomCall:
    """The arguments of one call: arrays, scalars, lengths that no array fixes, and the tile."""

    arguments: dict[str, Any]
    tile: tuple[int, int]
    outputs: list[str]

    def copy(self) -> dict[str, Any]:
        """The arguments with arrays of their own, for a call that updates some in place."""
        return {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in self.arguments.items()}


def random_call(
    kernel: Kernel,
    seed: int,
    mode: str | None = None,
    lengths: tuple[int, ...] = LENGTHS,
    tile: tuple[int, int] | None = None,
) -> RandomCall:
    """Arguments for a program: legal lengths, and data of one mode.

    Args:
        mode: "integers" are so small that an accumulator is exact; "normal"; "special" mixes in NaN, infinities,
            subnormals and signed zeros.
        lengths: what axes may be as long as, before they are made divisible.
    """
    rng = np.random.default_rng(seed)
    mode = mode or str(rng.choice(MODES))
    extents = random_extents(kernel, rng, lengths)
    opaque: dict[Dim, int] = {}
    arguments: dict[str, Any] = {}
    for p in kernel.params:
        if p.default is not None and rng.random() < 0.5:
            continue
        shape = tuple(_length(d, extents, opaque, rng) for d in p.dims)
        arguments[p.name] = data(p, shape, extents, arguments, kernel, mode, rng)
    fixed = {d.axis for p in kernel.params if p.name in arguments for d in p.dims if not d.tiled}
    arguments |= {axis: length for axis, length in extents.items() if axis not in fixed and axis in kernel.axes}
    names = [o.name for o in kernel.outputs]
    outputs = names if rng.random() < 0.5 else [n for n in names if rng.random() < 0.8] or names
    return RandomCall(arguments, tile or TILES[rng.integers(len(TILES))], outputs)


def random_extents(kernel: Kernel, rng: np.random.Generator, lengths: tuple[int, ...] = LENGTHS) -> dict[str, int]:
    """A length for each axis that honours every divisibility of the program."""
    dims = [d for p in kernel.params for d in p.dims] + [d for o in kernel.outputs for d in o.dims]
    dims += [d for v in kernel.values for d in v.type.dims]
    step = dict.fromkeys(kernel.axes, 1)
    for d in dims:
        if d.axis is not None and not d.tiled:
            step[d.axis] = math.lcm(step[d.axis], d.coef.denominator)
    extents = {axis: int(rng.choice(lengths)) // step[axis] * step[axis] for axis in kernel.axes}
    for split in kernel.splits:
        for dim in (split.inner, split.outer):
            if dim.axis is not None:  # never 0: the other factor would not be known
                need = step[dim.axis] * (step[split.axis] if dim is split.inner or split.inner.axis is None else 1)
                extents[dim.axis] = need * int(rng.integers(1, 4))
        factors = [int(d.coef) if d.axis is None else extents[d.axis] for d in (split.outer, split.inner)]
        extents[split.axis] = factors[0] * factors[1]
    return extents


def _length(d: Dim, extents: Mapping[str, int], opaque: dict[Dim, int], rng: np.random.Generator) -> int:
    if d.tiled:
        return opaque.setdefault(d, int(rng.integers(0, 5)))
    return int(d.coef) if d.axis is None else int(d.coef * extents[d.axis])


def data(
    p: Param,
    shape: tuple[int, ...],
    extents: Mapping[str, int],
    arguments: Mapping[str, Any],
    kernel: Kernel,
    mode: str,
    rng: np.random.Generator,
) -> Any:
    """An input's data, within its domain; integers without one lie around 0 … 6, a little outside most tables."""
    dtype = p.dtype.name if not isinstance(p.dtype, str) else _chosen(p.dtype, kernel, arguments, rng)
    kind = np.dtype(_NUMPY[dtype]).kind
    if dtype in ("i32", "i64"):
        low, high = (-2, 7) if p.domain is None else _range(p, extents)
        values = rng.integers(low, max(high, low + 1), shape)
        if p.domain is not None and p.domain.other is not None:
            values = np.where(rng.random(shape) < 0.2, arguments.get(p.domain.other, -1), values)
        return int(values) if p.host else values.astype(_NUMPY[dtype])
    if kind == "b":
        return rng.random(shape) < 0.5
    operand = kernel.product is not None and p.name in (kernel.product.a, kernel.product.b)
    if mode == "integers":
        x = rng.integers(-4, 5, shape) * (1.0 if operand else 0.5)
    else:
        x = rng.standard_normal(shape)
        if mode == "special":
            strange = rng.random(shape) < (0.02 if operand else 0.15)
            x = np.where(strange, rng.choice(_SPECIALS, shape), x)
    if p.domain is not None and p.domain.low is not None:
        x = np.where(np.isnan(x), 1.0, np.abs(x) + 0.25)
    if p.host:
        return float(x)
    with np.errstate(all="ignore"):
        return np.asarray(x, np.float32).astype(_NUMPY[dtype])


def _chosen(parameter: str, kernel: Kernel, arguments: Mapping[str, Any], rng: np.random.Generator) -> str:
    """A dtype parameter's type: that of an argument which has it, or one of its choices."""
    names = {np.dtype(t): n for n, t in _NUMPY.items()}
    for p in kernel.params:
        if p.dtype == parameter and p.name in arguments:
            return names[arguments[p.name].dtype]
    choices = next(d.choices for d in kernel.dtypes if d.name == parameter)
    return choices[int(rng.integers(len(choices)))].name


def _range(p: Param, extents: Mapping[str, int]) -> tuple[int, int]:
    assert p.domain is not None
    sides = []
    for bound, default in ((p.domain.low, -3), (p.domain.high, 9)):
        whole = 0 if bound is None or bound.dim is None else _length(bound.dim, extents, {}, np.random.default_rng(0))
        sides.append(default if bound is None else int(bound.offset) + whole)
    return sides[0], sides[1]
