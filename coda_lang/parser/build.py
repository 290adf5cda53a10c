"""From lark's tree to the syntax tree: one method for each rule of the grammar."""

from __future__ import annotations

import re
from typing import Any

from lark import Token, Transformer_NonRecursive, v_args
from lark.tree import Meta

from coda_lang.errors import CodaError, Diagnostic
from coda_lang.parser import syntax as s
from coda_lang.source import Source, Span

MAX_DEPTH = 100
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPES = {"n": "\n", "t": "\t"}


@v_args(meta=True)
class Builder(Transformer_NonRecursive[Token, Any]):
    """Builds one file's tree. Nested expressions are held to a depth that recursive passes can walk."""

    def __init__(self, source: Source, comments: tuple[s.Comment, ...]) -> None:
        super().__init__()
        self._source = source
        self._comments = comments

    def _at(self, meta: Meta | Token) -> Span:
        if isinstance(meta, Meta) and meta.empty:
            return Span(self._source, 0, 0)
        start = meta.start_pos if isinstance(meta.start_pos, int) else 0
        return Span(self._source, start, meta.end_pos if isinstance(meta.end_pos, int) else start)

    def _depth(self, meta: Meta, *children: s.Expr | s.DimExpr) -> int:
        depth = 1 + max((c.depth for c in children if isinstance(c, (s.Expr, s.DimBinary))), default=0)
        if depth > MAX_DEPTH:
            text = f"this expression is nested more than {MAX_DEPTH} deep"
            at = self._at(meta)
            where = Span(self._source, at.start, min(at.end, at.start + 1))
            raise CodaError([Diagnostic("E0005", where, text, "bind its parts to names")])
        return depth

    # -- files and definitions --

    def start(self, meta: Meta, children: list[Any]) -> s.File:
        definitions: list[s.Definition] = []
        diagnostics: list[Diagnostic] = []
        docs: list[Token] = []
        file_doc: str | None = None
        for child in children:
            if isinstance(child, Token):
                docs.append(child)
                continue
            doc = None
            if docs and isinstance(child, (s.Function, s.KernelDef, s.Const)):
                doc = _string(docs.pop())
                object.__setattr__(child, "doc", doc)  # the node is new and nobody else has seen it
            if docs and not definitions:
                file_doc = _string(docs.pop(0))
            diagnostics += [self._stray(t) for t in docs]
            docs = []
            definitions.append(child)
        if docs and not definitions:
            file_doc = _string(docs.pop(0))
        diagnostics += [self._stray(t) for t in docs]
        if diagnostics:
            raise CodaError(diagnostics)
        span = Span(self._source, 0, len(self._source.text))
        return s.File(file_doc, tuple(definitions), source=self._source, comments=self._comments, span=span)

    def _stray(self, token: Token) -> Diagnostic:
        text = "this string documents nothing"
        return Diagnostic(
            "E0007", self._at(token), text, "put it right before a kernel, map, reduce, block, fn or const"
        )

    def import_(self, meta: Meta, children: list[Any]) -> s.Import:
        path, *names = children
        return s.Import(_string(path), tuple(names), path_span=self._at(path), span=self._at(meta))

    def imported(self, meta: Meta, children: list[Any]) -> s.Imported:
        name, alias = children
        return s.Imported(str(name), alias and str(alias), span=self._at(meta))

    def const(self, meta: Meta, children: list[Any]) -> s.Const:
        name, value = children
        return s.Const(str(name), value, span=self._at(meta))

    def function(self, meta: Meta, children: list[Any]) -> s.Function:
        name, params, *rest = children
        short = isinstance(rest[-1], s.Expr)
        results = (rest[-1],) if short else rest[-1]
        return s.Function(
            str(name), params or (), tuple(rest[:-1]), results, short, name_span=self._at(name), span=self._at(meta)
        )

    def fn_params(self, meta: Meta, children: list[Any]) -> tuple[s.FunctionParam, ...]:
        return tuple(children)

    def fn_param(self, meta: Meta, children: list[Any]) -> s.FunctionParam:
        name, default = children
        return s.FunctionParam(str(name), default, span=self._at(meta))

    def kernel(self, meta: Meta, children: list[Any]) -> s.KernelDef:
        kind, name, axes, params, outputs, *body = children
        axis_defs, dtypes = axes or ((), ())
        signature = (axis_defs, dtypes, params or (), outputs or ())
        return s.KernelDef(str(kind), str(name), *signature, tuple(body), name_span=self._at(name), span=self._at(meta))

    def axes(self, meta: Meta, children: list[Any]) -> tuple[tuple[s.AxisDef, ...], tuple[s.DTypeDef, ...]]:
        axes = tuple(c for c in children if isinstance(c, s.AxisDef))
        return axes, tuple(c for c in children if isinstance(c, s.DTypeDef))

    def axis(self, meta: Meta, children: list[Any]) -> s.AxisDef:
        name, split, by = children
        return s.AxisDef(str(name), split, by and str(by), span=self._at(meta))

    def dtype_param(self, meta: Meta, children: list[Any]) -> s.DTypeDef:
        name, *choices = children
        return s.DTypeDef(str(name), tuple(map(str, choices)), span=self._at(meta))

    def params(self, meta: Meta, children: list[Any]) -> tuple[s.ParamDef, ...]:
        return tuple(children)

    def param(self, meta: Meta, children: list[Any]) -> s.ParamDef:
        inout, name, type_, domain, default = children
        where = {"name_span": self._at(name), "span": self._at(meta)}
        return s.ParamDef(str(name), type_, inout is not None, domain, default, **where)

    def outputs(self, meta: Meta, children: list[Any]) -> tuple[s.OutputDef, ...]:
        return tuple(children)

    def output(self, meta: Meta, children: list[Any]) -> s.OutputDef:
        name, type_, optional = children
        return s.OutputDef(str(name), type_, optional is not None, name_span=self._at(name), span=self._at(meta))

    def domain_range(self, meta: Meta, children: list[Any]) -> s.DomainExpr:
        low, high, _, other = children
        return s.DomainExpr("in", low, high, other and str(other), span=self._at(meta))

    def domain_compare(self, meta: Meta, children: list[Any]) -> s.DomainExpr:
        op, low = children
        return s.DomainExpr(str(op), low, span=self._at(meta))

    # -- types and extents --

    def tensor_type(self, meta: Meta, children: list[Any]) -> s.TypeExpr:
        dtype, *dims = children
        extents = tuple(d for d in dims if d is not None)
        return s.TypeExpr(str(dtype), extents, dtype_span=self._at(dtype), span=self._at(meta))

    def scalar_type(self, meta: Meta, children: list[Any]) -> s.TypeExpr:
        (dtype,) = children
        return s.TypeExpr(str(dtype), None, dtype_span=self._at(dtype), span=self._at(meta))

    def dim_name(self, meta: Meta, children: list[Any]) -> s.DimName:
        return s.DimName(str(children[0]), span=self._at(meta))

    def dim_number(self, meta: Meta, children: list[Any]) -> s.DimNumber:
        return s.DimNumber(str(children[0]), span=self._at(meta))

    def dim_tiles(self, meta: Meta, children: list[Any]) -> s.DimTiles:
        return s.DimTiles(str(children[0]), str(children[1]), span=self._at(meta))

    def dim_mul(self, meta: Meta, children: list[Any]) -> s.DimBinary:
        depth = self._depth(meta, *children)
        return s.DimBinary("*", children[0], children[1], span=self._at(meta), depth=depth)

    def dim_div(self, meta: Meta, children: list[Any]) -> s.DimBinary:
        depth = self._depth(meta, *children)
        return s.DimBinary("/", children[0], children[1], span=self._at(meta), depth=depth)

    # -- statements --

    def names(self, meta: Meta, children: list[Any]) -> tuple[s.Target, ...]:
        return tuple(s.Target(str(t), span=self._at(t)) for t in children)

    def bind(self, meta: Meta, children: list[Any]) -> s.Bind:
        return s.Bind(children[0], children[1], span=self._at(meta))

    def store(self, meta: Meta, children: list[Any]) -> s.StoreTo:
        target = s.Target(str(children[0]), span=self._at(children[0]))
        return s.StoreTo(target, children[1], False, span=self._at(meta))

    def accumulate(self, meta: Meta, children: list[Any]) -> s.StoreTo:
        target = s.Target(str(children[0]), span=self._at(children[0]))
        return s.StoreTo(target, children[1], True, span=self._at(meta))

    def perform(self, meta: Meta, children: list[Any]) -> s.Perform:
        return s.Perform(self.call(meta, children), span=self._at(meta))

    def exprs(self, meta: Meta, children: list[Any]) -> tuple[s.Expr, ...]:
        return tuple(children)

    # -- expressions --

    def name(self, meta: Meta, children: list[Any]) -> s.Name:
        return s.Name(str(children[0]), span=self._at(meta))

    def number(self, meta: Meta, children: list[Any]) -> s.Number:
        return s.Number(str(children[0]), span=self._at(meta))

    def boolean(self, meta: Meta, children: list[Any]) -> s.Boolean:
        return s.Boolean(children[0] == "true", span=self._at(meta))

    def parenthesised(self, meta: Meta, children: list[Any]) -> s.Expr:
        expr: s.Expr = children[0]
        return expr

    def compare(self, meta: Meta, children: list[Any]) -> Token:
        token: Token = children[0]
        return token

    def unary(self, meta: Meta, children: list[Any]) -> s.Unary:
        op, operand = children
        return s.Unary(str(op), operand, span=self._at(meta), depth=self._depth(meta, operand))

    def binary(self, meta: Meta, children: list[Any]) -> s.Binary:
        left, op, right = children
        depth = self._depth(meta, left, right)
        return s.Binary(str(op), left, right, op_span=self._at(op), span=self._at(meta), depth=depth)

    def attribute(self, meta: Meta, children: list[Any]) -> s.Attribute:
        operand, name = children
        return s.Attribute(operand, str(name), span=self._at(meta), depth=self._depth(meta, operand))

    def call(self, meta: Meta, children: list[Any]) -> s.Call:
        name, arguments = children
        depth = self._depth(meta, *(a.value for a in arguments or ()))
        return s.Call(str(name), arguments or (), function_span=self._at(name), span=self._at(meta), depth=depth)

    def arguments(self, meta: Meta, children: list[Any]) -> tuple[s.Argument, ...]:
        return tuple(c if isinstance(c, s.Argument) else s.Argument(None, c, span=c.span) for c in children)

    def keyword(self, meta: Meta, children: list[Any]) -> s.Argument:
        return s.Argument(str(children[0]), children[1], span=self._at(meta))

    def round(self, meta: Meta, children: list[Any]) -> s.Round:
        dtype, operand = children[2], children[4]
        depth = self._depth(meta, operand)
        return s.Round(str(dtype), operand, dtype_span=self._at(dtype), span=self._at(meta), depth=depth)

    def index(self, meta: Meta, children: list[Any]) -> s.Index:
        table, index, ellipsis = children
        depth = self._depth(meta, index)
        return s.Index(
            str(table), index, ellipsis is not None, table_span=self._at(table), span=self._at(meta), depth=depth
        )


def _string(token: Token) -> str:
    text = str(token)
    body = text[3:-3] if text.startswith('"""') else text[1:-1]
    return _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), body)
