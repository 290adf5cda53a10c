"""Expressions: names, calls and operations to operands; functions are inlined where they are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coda_lang.errors import Note, did_you_mean
from coda_lang.ir import rules
from coda_lang.ir.constants import BUILTIN, number_value, refuse_name
from coda_lang.ir.elsewhere import advice
from coda_lang.ir.module import Constant, FunctionEntity, Scope
from coda_lang.ir.ops import OPS, REDUCTIONS, TILE_RESULTS, WELFORD_PARTS
from coda_lang.ir.program import Definition
from coda_lang.ir.signature import as_dim
from coda_lang.ir.types import DTYPES, F32, I64, VALUE_DTYPE, Dim, axis_dim
from coda_lang.ir.values import KIND_NAMES, AbandonedError, Operand, Operands, Poly, ValueBuilder
from coda_lang.parser import syntax as s
from coda_lang.source import Span

MAX_NESTING = 1000  # expressions within functions within expressions …
PRELUDE = "<prelude>"


@dataclass
class Frame:
    """The names that expressions of one body see."""

    scope: Scope
    locals: dict[str, Operand] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    function: FunctionEntity | None = None
    call: Span | None = None


class ExpressionChecker(ValueBuilder):
    """Elaborates the expressions of one kernel's body."""

    # -- names -----------------------------------------------------------------------------------------------------

    def name(self, expr: s.Name, frame: Frame) -> Operand:
        name = expr.text
        if name in frame.locals:
            frame.used.add(name)
            return frame.locals[name]
        entity = frame.scope.names.get(name)
        if frame.function is None:
            if self.signature.param(name) is not None:
                return self.load(name, expr.span)
            if name in self.signature.poisoned:
                return None
            if name in self.dims.axes:
                self.dims.used_axes.add(name)
                return Poly("axis", axis=name)
        if isinstance(entity, Constant):
            value = entity.value
            return Poly("const", value=value) if type(value) is int else self.number(value, expr.span)
        if name in BUILTIN:
            return self.number(BUILTIN[name], expr.span)
        if name in frame.scope.poisoned:
            return None
        self._unknown_name(name, expr.span, frame, entity)
        return None

    def _unknown_name(self, name: str, span: Span, frame: Frame, entity: object) -> None:
        if name == "_":
            self.report.add("E0101", span, "`_` drops a result and has no value", "give the result a name to use it")
            return
        if frame.function is None and self.signature.output(name) is not None:
            text = f"`{name}` is an output: storing does not bind a name"
            self.report.add("E0107", span, text, f"bind the value first: `{name} = …`, then `{name} <- {name}`")
            return
        is_kernel = isinstance(entity, Definition) or name in frame.scope.kernels
        if is_kernel and not self.known_function(name, frame.scope):
            self.report.add("E0101", span, f"`{name}` is a kernel, not a value", _FROM_OUTSIDE)
            return
        if self.known_function(name, frame.scope):
            self.report.add("E0101", span, f"`{name}` is a function, not a value", f"call it: `{name}(…)`")
            return
        known = [*frame.locals, *(n for n, e in frame.scope.names.items() if isinstance(e, Constant))]
        if frame.function is None:
            known += [*(p.name for p in self.signature.params), *self.dims.axes]
        help = did_you_mean(name, [*known, *BUILTIN])
        if frame.function is not None:
            help = help or "a function sees its own arguments, constants and other functions"
        help = help or "bind it above, or take it as an input"
        self.report.add("E0101", span, f"unknown name `{name}`", help)

    def load(self, name: str, span: Span) -> Operand:
        """The value of an input where an element is computed."""
        if name in self._loads:
            return self._loads[name]
        param = self.signature.param(name)
        assert param is not None
        self._used_params.add(name)
        result: Operand = None
        kinds = self.signature.kinds(param.dtype)
        if param.inout:
            text = f"`{name}` is inout: it is written with `+<-` and not read"
            self.report.add("E0408", span, text, f"write `{name} +<- x`, or take it as a plain input")
            self._misread.add(name)
        elif self.grid is not None and not rules.aligned(self.report, self.grid, param, span, self.contracted):
            pass
        elif kinds:
            result = self.emit("load", (), name, VALUE_DTYPE[next(iter(kinds))], param.dims, span)
        self._loads[name] = result
        return result

    # -- expressions -----------------------------------------------------------------------------------------------

    def expr(self, expr: s.Expr, frame: Frame) -> Operand:
        """One value."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            text = f"expressions and functions are nested more than {MAX_NESTING} deep here"
            self.report.add("E0005", expr.span, text, "bind parts to names, and call fewer functions within functions")
            raise AbandonedError
        results = self.results(expr, frame)
        self._nesting -= 1
        if len(results) == 1:
            return results[0]
        if isinstance(expr, s.Call) and any(r is not None for r in results):
            text = f"`{expr.function}` gives {len(results)} results"
            self.report.add("E0206", expr.span, text, self._bind_all(expr, len(results)))
        return None

    def _bind_all(self, expr: s.Call, count: int) -> str:
        names = ", ".join("xyzuvw"[i % 6] for i in range(count))
        return f"bind them: `{names} = {expr.function}(…)`; `_` drops one"

    def results(self, expr: s.Expr, frame: Frame) -> Operands:
        """The values of an expression: one, but for calls with several results."""
        match expr:
            case s.Name():
                return (self.name(expr, frame),)
            case s.Number():
                value = number_value(expr, self.report)
                if value is None:
                    return (None,)
                return (Poly("const", value=value) if isinstance(value, int) else self.number(value, expr.span),)
            case s.Boolean():
                return (self.number(expr.value, expr.span),)
            case s.Unary():
                op = "not" if expr.op == "not" else "neg"
                return (self.apply(op, [(self.expr(expr.operand, frame), expr.operand.span)], expr.span),)
            case s.Binary():
                return (self.binary(expr, frame),)
            case s.Call():
                return self.call(expr, frame)
            case s.Round():
                return (self.round(expr, frame),)
            case s.Index():
                return (self.index(expr, frame),)
            case s.Attribute():
                if expr.name != "T":
                    text = f"there is no attribute `.{expr.name}`"
                    self.report.add("E0304", expr.span, text, "only `.T`, on an operand of the product")
                else:
                    rules.refuse_transpose(self.report, expr)
                return (None,)
        raise AssertionError(expr)

    def binary(self, expr: s.Binary, frame: Frame) -> Operand:
        if expr.op == "@":
            return self.matmul(expr, frame)
        op = next(o.name for o in OPS.values() if o.symbol == expr.op and len(o.params) == 2)
        left, right = self.expr(expr.left, frame), self.expr(expr.right, frame)
        return self.apply(op, [(left, expr.left.span), (right, expr.right.span)], expr.span)

    def matmul(self, expr: s.Binary, frame: Frame) -> Operand:
        if expr is self.product:
            for side in (expr.left, expr.right):
                inner = side.operand if isinstance(side, s.Attribute) else side
                if isinstance(inner, s.Name):
                    self._used_params.add(inner.text)
            return self.accumulator
        rules.refuse_product(self.report, expr, self.kind, self.product, frame.function is not None)
        for part in s.walk(expr):  # its operands are not values: they are used, and not checked further
            if isinstance(part, s.Name):
                self._used_params.add(part.text)
                frame.used.add(part.text)
        return None

    def round(self, expr: s.Round, frame: Frame) -> Operand:
        operand = self.expr(expr.operand, frame)
        dtype = DTYPES.get(expr.dtype)
        if dtype is None or dtype.kind != "float":
            floats = [n for n, t in DTYPES.items() if t.kind == "float"]
            near = did_you_mean(expr.dtype, floats) if dtype is None else None
            help = near or f"round to one of {', '.join(floats)}"
            self.report.add("E0106", expr.dtype_span, f"`{expr.dtype}` is not a float type", help)
            return None
        return self.apply("round", [(operand, expr.operand.span)], expr.span, dtype)

    def index(self, expr: s.Index, frame: Frame) -> Operand:
        """`table[index, ...]`: class 2, a load through a column of row numbers."""
        index = self.expr(expr.index, frame)
        param = self.signature.param(expr.table) if frame.function is None else None
        if param is None or expr.table in frame.locals:
            self._index_of_value(expr, index, frame)
            return None
        self._used_params.add(expr.table)
        if index is None:
            return None
        if isinstance(expr.index, s.Name) and expr.index.text in self.dims.axes and expr.index.text not in frame.locals:
            text = f"`{expr.index.text}` is a length, and as an index it is one past the last row"
            help = f"a value has its extents already: write `{expr.table}`"
            self.report.add("E0317", expr.span, text, help)
            return None
        row = self.as_kind(index, "I", expr.index.span)
        if row is None or self.kind_of(row) != "I":
            text = f"an index is an integer, and {self.show(index, expr.index.span)}"
            self.report.add("E0202", expr.index.span, text, "load it from an i32 or i64 input, or use row()")
            return None
        if not self.may_compute(row, expr.index.span):
            return None
        kinds = self.signature.kinds(param.dtype)
        dims = rules.gathered(self.report, self.grid, param, kinds, self.values[row], expr)
        if dims is None:
            return None
        return self.emit("gather", (row,), expr.table, F32, dims, expr.span)

    def _index_of_value(self, expr: s.Index, index: Operand, frame: Frame) -> None:
        name = expr.table
        frame.used.add(name)
        if name in self.signature.poisoned or (name in frame.locals and frame.locals[name] is None):
            return
        text = f"`{name}` is not an input, and only inputs can be indexed"
        help = did_you_mean(name, [p.name for p in self.signature.params])
        if name in frame.locals:
            help = "a value's elements stay where they are computed"
            if self.kind_of(index) == "I" and self.grid is not None:
                help = f"one column for each row is `pick({name}, {expr.index.span.text})`"
        help = help or "pass the table as an input"
        self.report.add("E0308", expr.table_span, text, help)

    # -- calls -----------------------------------------------------------------------------------------------------

    def known_function(self, name: str, scope: Scope) -> bool:
        row = OPS.get(name)
        special = name in _SPECIAL or name in REDUCTIONS or name == "f32"
        return special or (row is not None and row.callable) or scope.function(name) is not None

    def call(self, expr: s.Call, frame: Frame) -> Operands:
        name = expr.function
        entity = frame.scope.function(name)
        if entity is not None:
            return self.inline(entity, expr, frame)
        over = next((a for a in expr.arguments if a.name == "over"), None)
        if name in REDUCTIONS and (over is not None or (name == "sum")):
            return (self.reduction(expr, frame, over),)
        if name in _SPECIAL:
            return _SPECIAL[name](self, expr, frame)
        row = OPS.get(name)
        if name == "f32":
            operands = self.positional(expr, frame, ("x",))
            return (self.convert(operands, expr) if operands is not None else None,)
        if row is not None and row.callable:
            operands = self.positional(expr, frame, ("x", "y", "z")[: len(row.params)] if name != "select" else _SELECT)
            return (self.apply(name, operands, expr.span) if operands is not None else None,)
        for argument in expr.arguments:
            if argument.name != "over":
                self.expr(argument.value, frame)
        if name not in frame.scope.poisoned:
            self._unknown_function(expr, frame)
        return (None,)

    def _unknown_function(self, expr: s.Call, frame: Frame) -> None:
        name = expr.function
        known = [*frame.scope.functions(), *_SPECIAL, *REDUCTIONS, "f32", *(o.name for o in OPS.values() if o.callable)]
        if name in DTYPES:
            self.report.add(
                "E0103", expr.function_span, f"`{name}` is an element type", f"round with `round<{name}>(x)`"
            )
        elif name == "tiles":
            self.report.add("E0103", expr.function_span, "tiles(X) is an extent, not a value", "write `over=tiles(X)`")
        elif name in frame.scope.kernels or isinstance(frame.scope.names.get(name), Definition):
            self.report.add("E0103", expr.function_span, f"`{name}` is a kernel, not a function", _FROM_OUTSIDE)
        elif name in frame.locals or name in frame.scope.names or (frame.function is None and self._is_input(name)):
            text = f"`{name}` is a value, not a function"
            self.report.add("E0103", expr.function_span, text, f"multiply with `{name} * (…)`")
        else:
            if self.kind == "reduce":
                known = [n for n in known if n not in TILED]
            help = advice(name, self.kind) or did_you_mean(name, known) or "define it with `fn`, or import it"
            self.report.add("E0103", expr.function_span, f"unknown function `{name}`", help)

    def _is_input(self, name: str) -> bool:
        return self.signature.param(name) is not None or name in self.signature.poisoned or name in self.dims.axes

    def positional(self, expr: s.Call, frame: Frame, names: tuple[str, ...]) -> list[tuple[Operand, Span]] | None:
        """The arguments of a built-in in order, by position or by name; None after an error."""
        found: dict[str, tuple[Operand, Span]] = {}
        ok = True
        for i, argument in enumerate(expr.arguments):
            operand = self.expr(argument.value, frame)
            key = argument.name or (names[i] if i < len(names) else None)
            if key is None:
                continue
            if key not in names:
                known = (*names, *_OPTIONAL.get(expr.function, ()))
                help = did_you_mean(key, known) or (f"its arguments are {', '.join(known)}" if known else "it has none")
                self.report.add("E0204", argument.span, f"`{expr.function}` has no argument `{key}`", help)
                ok = False
            elif key in found:
                self.report.add("E0204", argument.span, f"`{key}` is given twice", "remove one")
                ok = False
            found[key] = (operand, argument.value.span)
        if ok and (len(found) != len(names) or len(expr.arguments) > len(names)):
            takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}" if names else "no arguments"
            form = f"write `{expr.function}({', '.join(names)})`"
            text = f"`{expr.function}` takes {takes}, got {len(expr.arguments)}"
            self.report.add("E0201", expr.span, text, form)
            ok = False
        return [found[n] for n in names] if ok else None

    def convert(self, operands: list[tuple[Operand, Span]], expr: s.Call) -> Operand:
        operand, span = operands[0]
        if isinstance(operand, Poly):
            return self.as_kind(operand, "F", span)
        if self.kind_of(operand) == "F":
            return operand
        return self.apply("to_f32", operands, expr.span)

    def inline(self, entity: FunctionEntity, expr: s.Call, frame: Frame) -> Operands:
        function = entity.function
        nothing: Operands = (None,) * len(function.results)
        arguments = self.bind_arguments(entity, expr, frame)
        if arguments is None:
            return nothing
        if isinstance(self._definition, s.Function) or function.name in entity.scope.recursive:
            return nothing  # a function is checked alone, and what it calls where that is defined
        key = (id(entity), tuple(arguments.values()))
        if key in self._inlined:
            return self._inlined[key]
        self._calls += 1
        self._count(self._calls)
        inner = Frame(entity.scope, dict(arguments), _places(function), function=entity, call=expr.span)
        before = len(self.report.errors)
        results = self.function_body(function, inner)
        for i in range(before, len(self.report.errors)):
            self._note_call(i, function.name, expr.span)
        self._inlined[key] = results
        return results

    def _note_call(self, index: int, name: str, span: Span) -> None:
        d = self.report.errors[index]
        if d.span.source.path == PRELUDE and span.source.path != PRELUDE:
            self.report.move(index, span, f"inside `{name}`, {d.message}")
            return
        if d.span.source is not span.source or not (span.start <= d.span.start < span.end):
            note = Note(f"`{name}` is called here", span)
            if len(d.notes) < 3:
                object.__setattr__(d, "notes", (*d.notes, note))

    def function_alone(self, entity: FunctionEntity) -> None:
        """Check a function's names, on arguments of unknown type."""
        function = entity.function
        for p in function.params:
            if p.default is not None:
                self.expr(p.default, Frame(entity.scope, function=entity))
        frame = Frame(entity.scope, {p.name: None for p in function.params}, _places(function), function=entity)
        self.function_body(function, frame)
        for name, span in frame.places.items():
            if name not in frame.used:
                self.report.add("W0002", span, f"`{name}` is not used")

    def function_body(self, function: s.Function, frame: Frame) -> Operands:
        for statement in function.body:
            if isinstance(statement, s.Bind):
                self.bind(statement, frame)
            elif isinstance(statement, s.Perform):
                self.refuse_perform(statement)
            else:
                text = "a function stores nothing"
                self.report.add("E0407", statement.span, text, "return the value and store it in the kernel")
        results: list[Operand] = []
        for result in function.results:
            results.append(self.expr(result, frame))
        return tuple(results)

    def bind_arguments(self, entity: FunctionEntity, expr: s.Call, frame: Frame) -> dict[str, Operand] | None:
        function = entity.function
        names = [p.name for p in function.params]
        given: dict[str, Operand] = {}
        ok = True
        for i, argument in enumerate(expr.arguments):
            operand = self.expr(argument.value, frame)
            key = argument.name or (names[i] if i < len(names) else None)
            if key is None:
                ok = False
            elif key not in names:
                help = did_you_mean(key, names) or (f"its arguments are {', '.join(names)}" if names else "it has none")
                self.report.add("E0204", argument.span, f"`{function.name}` has no argument `{key}`", help)
                return None
            elif key in given:
                self.report.add("E0204", argument.span, f"`{key}` is given twice", "remove one")
                return None
            else:
                given[key] = operand
        missing = [p.name for p in function.params if p.default is None and p.name not in given]
        if not ok or missing:
            takes = f"{len(names)} argument{'' if len(names) == 1 else 's'}"
            text = f"`{function.name}` takes {takes}, got {len(expr.arguments)}"
            if ok and len(expr.arguments) >= len(missing):
                text = f"`{function.name}` is not given {' and '.join(f'`{m}`' for m in missing)}"
            built_in = function.name_span.source.path == PRELUDE
            note = [] if built_in else [Note(f"`{function.name}` is defined here", function.name_span)]
            self.report.add("E0201", expr.span, text, f"write `{function.name}({', '.join(names)})`", note)
            return None
        for p in function.params:
            if p.name not in given and p.default is not None:
                given[p.name] = self.expr(p.default, Frame(entity.scope, function=entity))
        return {n: given[n] for n in names}

    # -- reductions ------------------------------------------------------------------------------------------------

    def _missing_over(self, expr: s.Call, at: Span | None, value: Operand) -> None:
        text = f"`{expr.function}` needs the axis it runs along"
        dims = self.values[value].type.dims if isinstance(value, int) else ()
        if self.grid is not None:
            split = self.grid.split if expr.function == "segment_sum" else None
            dims = (split.inner if split is not None else axis_dim(self.grid.cols.axis or "N"),)
        along = next((d for d in dims if d.tiled), dims[-1] if dims else "N")
        shown = " ".join(at.text.split()) if at is not None else "x"
        form = f"{expr.function}({shown if len(shown) <= 40 else 'x'}, over={along})"
        self.report.add("E0216", expr.span, text, f"write `{form}`")

    def over(self, expr: s.Call, argument: s.Argument) -> Dim | None:
        syntax = as_dim(argument.value)
        names = [n for n in s.walk(argument.value) if isinstance(n, s.Name)]
        if syntax is None or any(n.text not in self.dims.axes for n in names):
            axes = ", ".join(self.dims.axes)
            near = did_you_mean(names[0].text, self.dims.axes) if names else None
            text = f"`{argument.value.span.text}` is not an axis"
            self.report.add(
                "E0216", argument.span, text, near or f"`over` is one of {axes}, or tiles(…) of it in a reduce"
            )
            return None
        return self.dims.dim(syntax)

    def split_over(self, expr: s.Call, frame: Frame) -> tuple[Operand, Span, Dim] | None:
        """The value and the axis of `reduction(x, over=axis)`."""
        over = next((a for a in expr.arguments if a.name == "over"), None)
        rest = tuple(a for a in expr.arguments if a is not over)
        if frame.function is not None and over is not None:
            text = f"`{expr.function}` names an axis, and a function does not see the kernel's axes"
            self.report.add("E0311", expr.span, text, "reduce in the kernel's body")
            return None
        if over is None:
            values = [self.expr(argument.value, frame) for argument in rest]
            self._missing_over(expr, rest[0].value.span if rest else None, values[0] if values else None)
            return None
        dim = self.over(expr, over)
        operands = self.positional(
            s.Call(expr.function, rest, function_span=expr.function_span, span=expr.span), frame, ("x",)
        )
        if operands is None or dim is None or operands[0][0] is None:
            return None
        operand = self.as_kind(operands[0][0], "F", operands[0][1])
        if operand is None:
            return None
        if self.kind_of(operand) != "F":
            text = f"`{expr.function}` takes floats, and {self.show(operand, operands[0][1])}"
            self.report.add("E0202", operands[0][1], text, "convert with f32(…)")
            return None
        return operand, operands[0][1], dim

    def tile_reduction(self, expr: s.Call, frame: Frame) -> Operands:
        """Classes 4 and 5: one partial for each tile."""
        nothing: Operands = (None,) * (3 if expr.function == "tile_welford" else 1)
        if self.grid is None:
            rules.refuse_kind(self.report, expr, self.kind)
            return nothing
        found = self.split_over(expr, frame)
        if found is None or not self.may_compute(found[0], found[1]):
            return nothing
        operand, _, dim = found
        assert isinstance(operand, int)
        value = self.values[operand]
        dims = rules.reduced(self.report, self.grid, expr, value, dim)
        if dims is None:
            return nothing
        if expr.function == "tile_welford":
            parts = [(dim, part) for part in WELFORD_PARTS]
            return tuple(self.emit("tile_welford", (operand,), part, F32, dims, expr.span) for part in parts)
        return (self.emit(expr.function, (operand,), dim, F32, dims, expr.span),)

    def reduction(self, expr: s.Call, frame: Frame, over: s.Argument | None) -> Operand:
        """`sum`, `max` and `min` with `over=`, in a reduce."""
        if self.kind != "reduce":
            rules.refuse_kind(self.report, expr, self.kind)
            return None
        found = self.split_over(expr, frame)
        if found is None:
            return None
        operand, span, dim = found
        assert isinstance(operand, int)
        dims = self.values[operand].type.dims
        match = next((d for d in dims if (d.axis, d.coef, d.tiled) == (dim.axis, dim.coef, dim.tiled)), None)
        if match is None:
            text = f"{self.show(operand, span)} and has no extent {dim}"
            opaque = next((d for d in dims if d.tiled and d.axis == dim.axis), None)
            help = (
                f"write `over={opaque}`"
                if opaque is not None
                else f"its extents are {', '.join(map(str, dims)) or 'none'}"
            )
            self.report.add("E0310", expr.span, text, help)
            return None
        rest = tuple(d for d in dims if d != match)
        return self.emit(REDUCTIONS[expr.function], (operand,), match, F32, rest, expr.span)

    # -- maps over pairs, and class 2 --------------------------------------------------------------------------------

    def pairs(self, expr: s.Call, frame: Frame) -> Operands:
        operands = self.positional(expr, frame, ("x",))
        if operands is None or operands[0][0] is None or not self.may_compute(*operands[0]):
            return (None, None)
        operand = self.as_kind(operands[0][0], "F", operands[0][1])
        assert operand is not None
        dims = rules.halved(self.report, self.grid, self.values[operand], expr)
        if dims is None:
            return (None, None)
        dtype = self.values[operand].type.dtype
        return tuple(self.emit(op, (operand,), None, dtype, dims, expr.span) for op in ("even", "odd"))

    def unpairs(self, expr: s.Call, frame: Frame) -> Operands:
        operands = self.positional(expr, frame, ("x", "y"))
        if operands is None or any(o is None for o, _ in operands):
            return (None,)
        if not all(self.may_compute(o, at) for o, at in operands):
            return (None,)
        args = self._check_kinds("unpairs", operands, expr.span)
        dims = self.join([self.values[a].type.dims for a in args], operands, expr.span) if args is not None else None
        if args is None or dims is None:
            return (None,)
        wide = rules.doubled(self.report, self.grid, dims, expr)
        return (
            None
            if wide is None
            else self.emit("unpairs", args, None, self.values[args[0]].type.dtype, wide, expr.span),
        )

    def position(self, expr: s.Call, frame: Frame) -> Operands:
        operands = self.positional(expr, frame, ())
        if operands is None:
            return (None,)
        if self.grid is None:
            rules.refuse_kind(self.report, expr, self.kind)
            return (None,)
        dim = self.grid.rows if expr.function == "row" else self.grid.cols
        return (self.emit(expr.function, (), None, I64, (dim,), expr.span),)

    def picked(self, expr: s.Call, frame: Frame) -> Operands:
        """`pick(x, index, ignore=…)` and `onehot(index)`."""
        names: tuple[str, ...] = ("index",) if expr.function == "onehot" else ("x", "index")
        if expr.function == "pick" and any(a.name == "ignore" for a in expr.arguments):
            names = ("x", "index", "ignore")
        operands = self.positional(expr, frame, names)
        if operands is None or any(o is None for o, _ in operands):
            return (None,)
        if self.grid is None:
            rules.refuse_kind(self.report, expr, self.kind)
            return (None,)
        if not all(self.may_compute(o, at) for o, at in operands):
            return (None,)
        args: list[int] = []
        for (operand, at), name in zip(operands, names, strict=True):
            kind = "F" if name == "x" else "I"
            arg = self.as_kind(operand, kind, at)
            if arg is None:
                return (None,)
            if self.kind_of(arg) != kind:
                text = f"`{name}` of `{expr.function}` is {KIND_NAMES[kind]}, and {self.show(operand, at)}"
                help = "pass column numbers: an i32 or i64 input" if kind == "I" else "convert with f32(…)"
                self.report.add("E0202", at, text, help)
                return (None,)
            args.append(arg)
        spans = [at for _, at in operands]
        dims = rules.picked(self.report, self.grid, expr, [self.values[a] for a in args], spans)
        return (None if dims is None else self.emit(expr.function, tuple(args), None, F32, dims, expr.span),)

    # -- bindings ------------------------------------------------------------------------------------------------

    def bind(self, statement: s.Bind, frame: Frame) -> None:
        results = self.results(statement.value, frame)
        targets = statement.targets
        if len(targets) != len(results):
            if any(r is not None for r in results):
                plural = "" if len(results) == 1 else "s"
                text = f"{len(targets)} name{'s' if len(targets) > 1 else ''} for {len(results)} result{plural}"
                span = targets[0].span.to(targets[-1].span)
                call = statement.value if isinstance(statement.value, s.Call) and len(results) > 1 else None
                self.report.add("E0206", span, text, self._bind_all(call, len(results)) if call else "bind one name")
            results = (None,) * len(targets)
        for target, result in zip(targets, results, strict=True):
            if target.text != "_":
                self.bind_name(target, result, frame)

    def refuse_perform(self, statement: s.Perform) -> None:
        text = "an expression alone does nothing"
        self.report.add("E0410", statement.span, text, f"bind its value: `y = {statement.value.function}(…)`")

    def bind_name(self, target: s.Target, result: Operand, frame: Frame) -> None:
        name = target.text
        if refuse_name(name, target.span, self.report):
            return
        if name in frame.locals:
            notes = [Note(f"`{name}` is bound here", frame.places[name])] if name in frame.places else []
            self.report.add(
                "E0102", target.span, f"`{name}` is already bound", "a name is bound once: choose another", notes
            )
            return
        if frame.function is None:
            param = self.signature.param(name)
            if param is not None or name in self.dims.axes:
                what = "an input" if param is not None else "an axis"
                place = param.span if param is not None else self.dims.axes[name]
                note = [Note(f"`{name}` is declared here", place)]
                self.report.add("E0102", target.span, f"`{name}` is already {what}", "choose another name", note)
                return
        if isinstance(frame.scope.names.get(name), Constant):
            note = [Note(f"`{name}` is defined here", frame.scope.places[name])] if name in frame.scope.places else []
            self.report.add("E0102", target.span, f"`{name}` is already a constant", "choose another name", note)
            return
        frame.locals[name] = result
        frame.places[name] = target.span


TILED = frozenset({"row", "col", "onehot", "pairs", "unpairs", *TILE_RESULTS})  # what a reduce has not
_SELECT = ("condition", "x", "y")
_OPTIONAL = {"pick": ("ignore",)}
_FROM_OUTSIDE = "kernels, maps and reduces are called in a `block`, or from Python"
_SPECIAL: dict[str, Callable[[ExpressionChecker, s.Call, Frame], Operands]] = {
    "pairs": ExpressionChecker.pairs,
    "unpairs": ExpressionChecker.unpairs,
    "row": ExpressionChecker.position,
    "col": ExpressionChecker.position,
    "pick": ExpressionChecker.picked,
    "onehot": ExpressionChecker.picked,
    "tile_sum": ExpressionChecker.tile_reduction,
    "tile_max": ExpressionChecker.tile_reduction,
    "tile_absmax": ExpressionChecker.tile_reduction,
    "segment_sum": ExpressionChecker.tile_reduction,
    "tile_logsumexp": ExpressionChecker.tile_reduction,
    "tile_welford": ExpressionChecker.tile_reduction,
}


def _places(function: s.Function) -> dict[str, Span]:
    return {p.name: p.span for p in function.params}
