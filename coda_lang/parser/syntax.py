"""The syntax tree: what the parser makes of a text, before names and types are known.

Places do not take part in comparison, so two texts that mean the same program are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coda_lang.source import NOWHERE, Source, Span


@dataclass(frozen=True)
class Node:
    span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


# -- expressions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expr(Node):
    depth: int = field(default=1, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Name(Expr):
    text: str


@dataclass(frozen=True)
class Number(Expr):
    """A literal as it was written: `1`, `1.0` and `1e0` are different texts."""

    text: str

    @property
    def is_integer(self) -> bool:
        return self.text.isdigit()


@dataclass(frozen=True)
class Boolean(Expr):
    value: bool


@dataclass(frozen=True)
class Unary(Expr):
    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr
    op_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Attribute(Expr):
    """`x.T`, and nothing else."""

    operand: Expr
    name: str


@dataclass(frozen=True)
class Argument(Node):
    name: str | None
    value: Expr


@dataclass(frozen=True)
class Call(Expr):
    function: str
    arguments: tuple[Argument, ...]
    function_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Round(Expr):
    """`round<bf16>(x)`."""

    dtype: str
    operand: Expr
    dtype_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Index(Expr):
    """`table[index, ...]`, or `table[index]`."""

    table: str
    index: Expr
    ellipsis: bool
    table_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and all in it, from left to right."""
    yield expr
    match expr:
        case Unary() | Attribute() | Round():
            yield from walk(expr.operand)
        case Binary():
            yield from walk(expr.left)
            yield from walk(expr.right)
        case Call():
            for argument in expr.arguments:
                yield from walk(argument.value)
        case Index():
            yield from walk(expr.index)


# -- extents and types ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DimName(Node):
    text: str


@dataclass(frozen=True)
class DimNumber(Node):
    text: str


@dataclass(frozen=True)
class DimTiles(Node):
    function: str
    axis: str


@dataclass(frozen=True)
class DimBinary(Node):
    op: str
    left: DimExpr
    right: DimExpr
    depth: int = field(default=1, compare=False, repr=False, kw_only=True)


DimExpr = DimName | DimNumber | DimTiles | DimBinary


@dataclass(frozen=True)
class TypeExpr(Node):
    """`f32` (``dims`` is None: a host scalar) or `f32[…]`."""

    dtype: str
    dims: tuple[DimExpr, ...] | None
    dtype_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


# -- statements and definitions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target(Node):
    text: str


@dataclass(frozen=True)
class Bind(Node):
    targets: tuple[Target, ...]
    value: Expr


@dataclass(frozen=True)
class StoreTo(Node):
    """`target <- value`, or `target +<- value`."""

    target: Target
    value: Expr
    accumulate: bool


@dataclass(frozen=True)
class Perform(Node):
    """A call on its own: what a block calls for its `inout` arguments."""

    value: Call


Statement = Bind | StoreTo | Perform


@dataclass(frozen=True)
class DomainExpr(Node):
    """`in low..high`, with `or other`; or a comparison with one bound."""

    op: str  # in == != < <= > >=
    low: Expr
    high: Expr | None = None
    other: str | None = None


@dataclass(frozen=True)
class ParamDef(Node):
    name: str
    type: TypeExpr
    inout: bool = False
    domain: DomainExpr | None = None
    default: Expr | None = None
    name_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class OutputDef(Node):
    name: str
    type: TypeExpr
    optional: bool = False
    name_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class AxisDef(Node):
    """``by`` is the number of rows that a block works on at a time, as it was written."""

    name: str
    split: DimExpr | None = None
    by: str | None = None


@dataclass(frozen=True)
class DTypeDef(Node):
    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Imported(Node):
    name: str
    alias: str | None = None


@dataclass(frozen=True)
class Import(Node):
    path: str
    names: tuple[Imported, ...]
    path_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Const(Node):
    name: str
    value: Expr
    doc: str | None = None


@dataclass(frozen=True)
class FunctionParam(Node):
    name: str
    default: Expr | None = None


@dataclass(frozen=True)
class Function(Node):
    """`fn name(params) = expr`, or with statements and `return`; ``short`` is the first form."""

    name: str
    params: tuple[FunctionParam, ...]
    body: tuple[Statement, ...]
    results: tuple[Expr, ...]
    short: bool
    doc: str | None = None
    name_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class KernelDef(Node):
    """A kernel, map, reduce or block; ``kind`` is its keyword."""

    kind: str
    name: str
    axes: tuple[AxisDef, ...]
    dtypes: tuple[DTypeDef, ...]
    params: tuple[ParamDef, ...]
    outputs: tuple[OutputDef, ...]
    body: tuple[Statement, ...]
    doc: str | None = None
    name_span: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


Definition = Import | Const | Function | KernelDef


@dataclass(frozen=True)
class Comment:
    """A `//` comment and where it stands, for the formatter."""

    text: str
    start: int
    own_line: bool


@dataclass(frozen=True)
class File(Node):
    doc: str | None
    definitions: tuple[Definition, ...]
    source: Source = field(compare=False, repr=False, kw_only=True)
    comments: tuple[Comment, ...] = field(default=(), compare=False, repr=False, kw_only=True)
