"""Blocks: from calls of kernels, maps, reduces and other blocks to typed steps, with every mistake reported once."""

from __future__ import annotations

from collections.abc import Iterator

from coda_lang.errors import Note, did_you_mean
from coda_lang.ir.constants import BUILTIN, number_value, refuse_name
from coda_lang.ir.module import Constant, Scope
from coda_lang.ir.ops import OPS, REDUCTIONS
from coda_lang.ir.program import Block, Definition, Kernel, Number, Output, Param, Scalar, Step, Tensor
from coda_lang.ir.report import Report
from coda_lang.ir.signature import Signature, SignatureChecker, as_dim
from coda_lang.ir.types import Dim, DType, axis_dim
from coda_lang.ir.unify import Unifier, shown
from coda_lang.parser import syntax as s
from coda_lang.source import Span

_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_AN_ARRAY = "pass an input of the block, or a result of a call"
_AS_THEY_ARE = "a block passes arrays on as they are: compute in a `map`"


def called(block: s.KernelDef) -> Iterator[s.Call]:
    """The calls of a block's body, those within arguments too."""
    for statement in block.body:
        yield from (e for e in s.walk(statement.value) if isinstance(e, s.Call))


class BlockChecker:
    """Checks one block; `tensors` has every array by the name that the body knows it by, None after an error."""

    def __init__(self, definition: s.KernelDef, scope: Scope, report: Report) -> None:
        self.definition, self.scope, self.report = definition, scope, report
        self.dims = SignatureChecker(definition, scope, report)
        self.signature = Signature((), (), (), (), ())
        self.tensors: dict[str, Tensor | None] = {}
        self.steps: list[Step] = []
        self.made: list[Tensor] = []
        self.stores: dict[str, tuple[str, Span]] = {}
        self._calls = self._unnamed = 0
        self._used: set[str] = set()
        self._bound: dict[str, Span] = {}

    def check(self) -> Block | None:
        """The block, or None if it has a mistake."""
        before, d = len(self.report.errors), self.definition
        self.signature = self.dims.check()
        inputs = [p for p in self.signature.params if not p.host]
        self.tensors = {p.name: Tensor(p.name, p.dtype, p.dims, span=p.span) for p in inputs}
        self.tensors |= {name: None for name in self.signature.poisoned if name not in self.tensors}
        self._refuse_tiles()
        by = self._by()
        if not d.outputs and not any(p.inout for p in d.params):
            text = f"block `{d.name}` has no output"
            self.report.add("E0409", d.name_span, text, "declare what it computes: `-> (y: bf16[M, N])`")
        for statement in d.body:
            match statement:
                case s.Bind():
                    self._bind(statement)
                case s.StoreTo():
                    self._store(statement)
                case s.Perform():
                    self._call(statement.value, None)
        self._unused()
        if len(self.report.errors) > before:
            return None
        return Block(
            kind="block",
            name=d.name,
            doc=d.doc or "",
            axes=self.signature.axes,
            splits=self.signature.splits,
            dtypes=self.signature.dtypes,
            params=self.signature.params,
            outputs=self.signature.outputs,
            by=by,
            tensors=tuple(self.made),
            steps=tuple(self.steps),
            stores=tuple((name, tensor) for name, (tensor, _) in self.stores.items()),
            span=d.name_span,
        )

    # -- the signature --

    def _refuse_tiles(self) -> None:
        targets: list[Param | Output] = [*self.signature.params, *self.signature.outputs]
        for target in targets:
            opaque = next((d for d in target.dims if d.tiled), None)
            if opaque is not None:
                text = f"`{target.name}` has extent {opaque}, which depends on how a kernel is tiled"
                self.report.add("E0509", target.span, text, "combine the partials with a `reduce` inside the block")
                self.signature.poisoned.add(target.name)
                self.tensors |= {target.name: None} if isinstance(target, Param) else {}

    def _by(self) -> tuple[str, int] | None:
        axes = [a for a in self.definition.axes if a.by is not None]
        for axis in axes[1:]:
            note = [Note(f"`{axes[0].name}` is cut here", axes[0].span)]
            self.report.add("E0511", axis.span, "a block is cut along one axis", "cut a block inside it", note)
        if not axes:
            return None
        axis = axes[0]
        assert axis.by is not None
        if not axis.by.isdigit() or len(axis.by) > 18 or int(axis.by) == 0:
            text = f"`{axis.by[:30]}` is no length of a piece"
            self.report.add("E0511", axis.span, text, f"write `{axis.name} by 2048`")
            return None
        if any(axis.name in (sp.axis, sp.outer.axis, sp.inner.axis) for sp in self.signature.splits):
            self.report.add("E0511", axis.span, f"`{axis.name}` is split, and is not cut too", "cut another axis")
        whole = axis_dim(axis.name)
        targets: list[Param | Output] = [*self.signature.params, *self.signature.outputs]
        for target in targets:
            along = [d.axis == axis.name for d in target.dims]
            if any(along) and (target.dims[0] != whole or any(along[1:])):
                text = f"`{target.name}` is [{', '.join(map(str, target.dims))}], and pieces of {axis.name} are rows"
                self.report.add("E0511", target.span, text, f"{axis.name} is the first extent of what it cuts")
            elif isinstance(target, Output) and not any(along):
                text = f"each piece of {axis.name} would make all of `{target.name}`"
                help = f"take `inout {target.name}: …`, and add to it with a kernel that does"
                self.report.add("E0511", target.span, text, help)
        return axis.name, int(axis.by)

    # -- statements --

    def _bind(self, statement: s.Bind) -> None:
        call, selected = _selection(statement.value)
        if call is None:
            text = "a block calls kernels, maps, reduces and blocks, and computes nothing itself"
            help = "a `const` names a number; compute with arrays in a `map`"
            self.report.add("E0506", statement.value.span, text, help)
            results: list[Tensor | None] | None = None
        else:
            results = self._call(call, statement.targets, selected)
        for i, target in enumerate(statement.targets):
            self._name(target, results[i] if results is not None else None)

    def _name(self, target: s.Target, result: Tensor | None) -> None:
        name = target.text
        if name == "_" or refuse_name(name, target.span, self.report):
            return
        places = {**self.dims.axes, **{p.name: p.span for p in self.signature.params}, **self._bound}
        if name in places:
            note = [Note(f"`{name}` is bound here", places[name])]
            help = "a name is bound once: choose another"
            self.report.add("E0102", target.span, f"`{name}` is already bound", help, note)
            return
        self.tensors[name] = result
        self._bound[name] = target.span

    def _store(self, statement: s.StoreTo) -> None:
        name, span = statement.target.text, statement.target.span
        value = self._array(statement.value)
        output = self.signature.output(name)
        if name in self.stores:
            note = [Note("first stored here", self.stores[name][1])]
            self.report.add("E0402", span, f"`{name}` is stored twice", "each output is stored exactly once", note)
            return
        if output is None:
            if name not in self.signature.poisoned:
                known = [o.name for o in self.signature.outputs]
                help = did_you_mean(name, known) or f"the outputs are {', '.join(known) or 'none'}"
                self.report.add("E0407", span, f"there is no output `{name}`", help)
            return
        self.stores[name] = ("", span)
        if statement.accumulate:
            help = f"call a kernel that adds to an `inout {name}`"
            self.report.add("E0507", span, "a block adds nothing up itself", help)
        elif (
            value is not None
            and name not in self.signature.poisoned
            and self._may_be(output, value, statement.value.span)
        ):
            self.stores[name] = (value.name, span)

    def _may_be(self, output: Output, value: Tensor, span: Span) -> bool:
        """An output is the result of a step, and of no other output."""
        if value not in self.made:
            text = f"{shown(value)} is an input, and an output is what a step makes"
            self.report.add("E0507", span, text, "copy it with a `map`, or leave it out")
            return False
        other = next((n for n, (tensor, _) in self.stores.items() if tensor == value.name), None)
        if other is not None:
            text = f"{shown(value)} is output `{other}` already"
            self.report.add("E0507", span, text, "an array is one output", [Note("stored here", self.stores[other][1])])
            return False
        if (value.dtype, value.dims) != (output.dtype, output.dims):
            text = f"{shown(value)} is {_type(value)}, and `{output.name}` is {_type(output)}"
            notes = [Note(f"`{output.name}` is declared here", output.span)]
            help = f"declare `{output.name}: {_type(value)}`"
            if any(d.tiled for d in value.dims):
                help = "combine the partials with a `reduce`, and store what it gives"
            self.report.add("E0507", span, text, help, notes)
            return False
        return True

    # -- calls --

    def _call(
        self, call: s.Call, targets: tuple[s.Target, ...] | None, selected: s.Attribute | None = None
    ) -> list[Tensor | None] | None:
        """One step; its results by target, or None after an error. Without targets it is called for its `inout`."""
        callee = self._callee(call)
        if callee is None:
            for argument in call.arguments:
                self._seen(argument.value)
            return None
        outputs = self._results(call, callee, targets, selected)
        arguments = self._arguments(call, callee)
        if arguments is None:
            return None
        self._calls += 1
        step = f"{self._calls}"
        unifier = Unifier(callee, self.signature.splits, self.signature.dtypes, self.report, step)
        ok = True
        for name, argument in arguments.items():
            if name in callee.axes and not any(p.name == name for p in callee.params):
                found = self._extent(name, argument, callee)
                ok &= found is not None and unifier.axis(name, found, f"`{name}=`", argument.span)
        tensors: list[tuple[str, str]] = []
        scalars: list[tuple[str, Scalar]] = []
        for p in callee.params:
            if p.name not in arguments:
                continue
            value = arguments[p.name].value
            if p.host:
                number = self._number(p, callee, value)
                ok &= number is not None
                scalars += [(p.name, number)] if number is not None else []
                continue
            tensor = self._tensor(p, callee, value)
            ok &= tensor is not None
            if tensor is not None:
                ok &= unifier.tensor(p, tensor, value.span)
                tensors.append((p.name, tensor.name))
        ok &= self._updated_once(callee, tensors, arguments)
        if not ok or outputs is None or not unifier.solve_splits(call.function_span):
            return None
        return self._step(call, callee, unifier, tuple(tensors), tuple(scalars), outputs, targets)

    def _extent(self, name: str, argument: s.Argument, callee: Definition) -> Dim | None:
        """The extent that is passed for an axis; None after an error."""
        value = argument.value
        dim = as_dim(value)
        what = f"`{value.span.text}` is no extent of this block"
        if isinstance(value, s.Name) and value.text not in self.dims.axes:
            own = self.signature.param(value.text)
            if own is not None or isinstance(self.scope.names.get(value.text), Constant) or value.text in self.tensors:
                dim, what = None, f"`{value.text}` is {'a number' if own is None or own.host else 'an array'}"
                self._used.add(value.text)
        found = self.dims.dim(dim) if dim is not None else None
        if dim is None or (found is not None and found.tiled):
            text = f"{name} is an axis of `{callee.name}`, and {what}"
            self.report.add("E0504", argument.span, text, f"write `{name}=D`, with an axis of this block")
            return None
        return found

    def _updated_once(
        self, callee: Definition, tensors: list[tuple[str, str]], arguments: dict[str, s.Argument]
    ) -> bool:
        """Each array that a call updates is passed for one input. False after an error."""
        first: dict[str, str] = {}
        for name in (n for n, _ in tensors if callee.param(n).inout):
            tensor = dict(tensors)[name]
            if tensor in first:
                text = f"`{tensor}` is updated as `{first[tensor]}` and as `{name}` of `{callee.name}`"
                note = [Note("the other is given here", arguments[first[tensor]].span)]
                help = "pass each `inout` input an array of its own"
                self.report.add("E0510", arguments[name].span, text, help, note)
                return False
            first[tensor] = name
        return True

    def _step(
        self,
        call: s.Call,
        callee: Kernel | Block,
        unifier: Unifier,
        tensors: tuple[tuple[str, str], ...],
        scalars: tuple[tuple[str, Scalar], ...],
        outputs: list[Output],
        targets: tuple[s.Target, ...] | None,
    ) -> list[Tensor | None] | None:
        passed = frozenset(n for n, _ in tensors)
        kept = [(o, t) for o, t in zip(outputs, targets or (), strict=False) if t.text != "_"]
        missing = unifier.missing(passed)
        found: dict[str, Tensor] = {}
        for o, target in kept:
            typed = unifier.result(o, call.function_span)
            if typed is None:
                return None
            if isinstance(typed, str):
                missing = missing or typed
            else:
                found[o.name] = Tensor(target.text, *typed, span=target.span)
        if missing is not None:
            text = f"no argument fixes axis {missing} of `{callee.name}`"
            split = next((sp for sp in callee.splits if missing in (sp.outer.axis, sp.inner.axis, sp.axis)), None)
            form = f", or split the axis here too: `{split.axis} = {split.outer} * {split.inner}`" if split else ""
            notes = [Note(f"`{callee.name}` is declared here", callee.span)]
            self.report.add("E0504", call.function_span, text, f"pass its extent by name: `{missing}=…`{form}", notes)
            return None
        self.made += found.values()
        axes = tuple((n, bound.to) for n, bound in unifier.axes.items() if not bound.to.tiled)
        results = tuple((o, t.name) for o, t in found.items())
        self.steps.append(Step(callee, tensors, scalars, axes, results, span=call.span))
        return [found.get(o.name) for o in outputs]

    def _callee(self, call: s.Call) -> Kernel | Block | None:
        name = call.function
        entity = self.scope.names.get(name)
        if isinstance(entity, (Kernel, Block)):
            return entity
        if name in self.scope.poisoned or name in self.scope.kernels:
            return None  # it has an error of its own
        if self.scope.function(name) is not None or name in OPS or name in REDUCTIONS:
            text, help = f"`{name}` is a function of elements, and a block calls kernels", "call it in a `map`"
        elif isinstance(entity, Constant):
            text, help = f"`{name}` is a constant", "a block calls kernels, maps, reduces and blocks"
        else:
            known = [n for n, e in self.scope.names.items() if isinstance(e, Definition)]
            text = f"there is no kernel, map, reduce or block `{name}`"
            help = did_you_mean(name, known) or f'define it, or import it: `import "file.coda" {{ {name} }}`'
        self.report.add("E0501", call.function_span, text, help)
        return None

    def _results(
        self, call: s.Call, callee: Definition, targets: tuple[s.Target, ...] | None, selected: s.Attribute | None
    ) -> list[Output] | None:
        """The outputs that the targets stand for."""
        note = [Note(f"`{callee.name}` is declared here", callee.span)]
        outputs = list(callee.outputs)
        always = [o for o in outputs if not o.optional]
        if selected is not None:
            found = [o for o in outputs if o.name == selected.name]
            if not found:
                known = [o.name for o in outputs]
                help = did_you_mean(selected.name, known) or f"its outputs are {', '.join(known) or 'none'}"
                text = f"`{callee.name}` has no output `{selected.name}`"
                self.report.add("E0505", selected.span, text, help, note)
                return None
            outputs = always = found
        names = ", ".join(o.name + ("?" if o.optional else "") for o in outputs) or "none"
        if targets is None:
            if any(p.inout for p in callee.params):
                return []
            text = f"the results of `{callee.name}` are dropped"
            self.report.add(
                "E0505", call.span, text, f"bind them: {', '.join(o.name for o in always)} = {callee.name}(…)", note
            )
            return None
        if len(targets) in (len(outputs), len(always)) and targets:
            return outputs if len(targets) == len(outputs) else always
        plural = "" if len(targets) == 1 else "s"
        text = f"{len(targets)} name{plural} for the results of `{callee.name}`, which are {names}"
        if len(targets) == 1 and "@" in targets[0].text and outputs:
            text = f"`{callee.name}` has several results, {names}, and one is wanted here"
            self.report.add("E0505", call.span, text, f"take one: `{callee.name}(…).{outputs[0].name}`", note)
            return None
        help = "`_` drops a result" if outputs else f"call it on a line of its own: `{callee.name}(…)`"
        if any(o.optional for o in outputs):
            help = "bind all of them, or all but the optional ones (`?`); `_` drops a result"
        span = targets[0].span.to(targets[-1].span) if targets[0].span.source is call.span.source else call.span
        self.report.add("E0505", span, text, help, note)
        return None

    def _arguments(self, call: s.Call, callee: Definition) -> dict[str, s.Argument] | None:
        """Arguments by name: those without one are the first inputs, in order."""
        note = [Note(f"`{callee.name}` is declared here", callee.span)]
        names = [p.name for p in callee.params]
        found: dict[str, s.Argument] = {}
        ok = True
        for i, argument in enumerate(call.arguments):
            name = argument.name or (names[i] if i < len(names) else None)
            if name is None:
                text = f"`{callee.name}` has {len(names)} input{'' if len(names) == 1 else 's'}"
                self.report.add("E0502", argument.span, text, "pass arguments by name", note)
            elif name not in names and name not in callee.axes:
                help = did_you_mean(name, [*names, *callee.axes]) or f"its inputs are {', '.join(names) or 'none'}"
                self.report.add("E0502", argument.span, f"`{callee.name}` has no input `{name}`", help, note)
            elif name in found:
                first = [Note("first given here", found[name].span)]
                self.report.add("E0502", argument.span, f"`{name}` is given twice", "remove one", first)
            else:
                found[name] = argument
                continue
            ok = False
            self._seen(argument.value)
        missing = [p for p in callee.params if p.default is None and p.name not in found]
        if missing and ok:
            text = f"`{callee.name}` is not given {' and '.join(f'`{p.name}`' for p in missing)}"
            notes = [Note(f"`{p.name}` is declared here", p.span) for p in missing[:3]]
            help = f"add `{', '.join(f'{p.name}=…' for p in missing)}`"
            self.report.add("E0502", call.function_span, text, help, notes)
        if not ok or missing:
            for argument in found.values():
                self._seen(argument.value)
        return found if ok and not missing else None

    # -- arguments --

    def _array(self, expr: s.Expr) -> Tensor | None:
        """The array that an expression names or a call with one result makes."""
        call, selected = _selection(expr)
        if call is not None:
            span = call.function_span
            self._unnamed += 1  # counted before the arguments, which may be calls of the same
            results = self._call(call, (s.Target(f"{call.function}@{self._unnamed}", span=span),), selected)
            return results[0] if results else None
        if isinstance(expr, s.Name):
            name = expr.text
            if name in self.tensors:
                self._used.add(name)
                return self.tensors[name]
            if name in self.signature.poisoned or name in self.scope.poisoned:
                return None
            if self.signature.param(name) is not None or isinstance(self.scope.names.get(name), Constant):
                self.report.add("E0503", expr.span, f"`{name}` is a number, and an array is wanted here", _AN_ARRAY)
                return None
            if self.signature.output(name) is not None:
                text = f"`{name}` is an output: storing does not bind a name"
                self.report.add("E0107", expr.span, text, f"bind the result first, then `{name} <- …`")
                return None
            help = did_you_mean(name, self.tensors) or "bind it above, or take it as an input"
            self.report.add("E0101", expr.span, f"unknown name `{name}`", help)
            return None
        if isinstance(expr, (s.Number, s.Boolean)):
            self.report.add(
                "E0503", expr.span, f"`{expr.span.text}` is a number, and an array is wanted here", _AN_ARRAY
            )
            return None
        self._seen(expr)
        self.report.add("E0506", expr.span, "a block computes nothing with arrays", _AS_THEY_ARE)
        return None

    def _tensor(self, param: Param, callee: Definition, expr: s.Expr) -> Tensor | None:
        """The array passed for an input, held to what `inout` and defaults ask."""
        tensor = self._array(expr)
        if tensor is None:
            return None
        own = next((p for p in self.signature.params if p.name == tensor.name and tensor not in self.made), None)
        note = [Note(f"`{param.name}` is declared here", param.span)]
        if param.inout and (own is None or not own.inout):
            text = f"`{callee.name}` updates `{param.name}` in place, and {shown(tensor)} is no `inout` of this block"
            help = f"take it as `inout {tensor.name}: …`" if own is not None else "take an `inout` input, and pass that"
            self.report.add("E0510", expr.span, text, help, note)
            return None
        if own is not None and own.inout and not param.inout:
            text = f"`{tensor.name}` is inout: it is added to, and not read before the block has ended"
            self.report.add("E0510", expr.span, text, "pass another array", note)
            return None
        if own is not None and own.default is not None and not _same(own.default, param.default):
            what = "must be given" if param.default is None else f"is {param.default} where it is not given"
            text = f"`{tensor.name}` may be left out, and `{param.name}` of `{callee.name}` {what}"
            self.report.add("E0512", expr.span, text, "give both the same default, or none", note)
            return None
        return tensor

    def _number(self, param: Param, callee: Definition, expr: s.Expr) -> Scalar | None:
        """The number passed by value for a host scalar."""
        typed = self._scalar(expr, param, callee)
        if typed is None:
            return None
        number, is_float = typed
        assert isinstance(param.dtype, DType)
        literal = number.attr if number.op == "const" else 0
        if param.dtype.kind == "int" and isinstance(literal, int) and abs(literal) >= 2 ** (param.dtype.bits - 1):
            text = f"`{param.name}` of `{callee.name}` is {param.dtype}, and `{expr.span.text}` does not fit it"
            notes = [Note(f"`{param.name}` is declared here", param.span)]
            self.report.add("E0503", expr.span, text, f"the largest is {2 ** (param.dtype.bits - 1) - 1}", notes)
            return None
        if is_float and param.dtype.kind == "int":
            text = f"`{param.name}` of `{callee.name}` is {param.dtype}, and this is a float"
            notes = [Note(f"`{param.name}` is declared here", param.span)]
            self.report.add("E0503", expr.span, text, "write a whole number or an axis length", notes)
            return None
        return number

    def _scalar(self, expr: s.Expr, param: Param, callee: Definition) -> tuple[Scalar, bool] | None:
        """A number that is known before the block runs, and whether it is a float."""
        match expr:
            case s.Number():
                value = number_value(expr, self.report)
                return None if value is None else (Scalar("const", attr=value), isinstance(value, float))
            case s.Unary(op="-"):
                part = self._scalar(expr.operand, param, callee)
                return None if part is None else (Scalar("neg", (part[0],)), part[1])
            case s.Binary(op="+" | "-" | "*" | "/"):
                left, right = (self._scalar(e, param, callee) for e in (expr.left, expr.right))
                if left is None or right is None:
                    return None
                is_float = left[1] or right[1] or expr.op == "/"
                return Scalar(_ARITHMETIC[expr.op], (left[0], right[0])), is_float
            case s.Name():
                return self._named_number(expr, param, callee)
        self._seen(expr)
        text = f"`{param.name}` of `{callee.name}` is a number passed by value"
        help = "write a number, an axis length, a scalar input, or + - * / of them"
        self.report.add("E0503", expr.span, text, help, [Note(f"`{param.name}` is declared here", param.span)])
        return None

    def _named_number(self, expr: s.Name, param: Param, callee: Definition) -> tuple[Scalar, bool] | None:
        name = expr.text
        own = self.signature.param(name)
        entity = self.scope.names.get(name)
        if own is not None and own.host:
            self._used.add(name)
            return Scalar("param", attr=name), isinstance(own.dtype, DType) and own.dtype.kind == "float"
        if name in self.dims.axes:
            self.dims.used_axes.add(name)
            return Scalar("axis", attr=axis_dim(name)), False
        if name in self.tensors:
            self._used.add(name)
            text = f"`{param.name}` of `{callee.name}` is a number passed by value, and `{name}` is an array"
            notes = [Note(f"`{param.name}` is declared here", param.span)]
            self.report.add("E0503", expr.span, text, f"declare `{name}: {param.dtype}` without extents", notes)
        elif isinstance(entity, Constant) and not isinstance(entity.value, bool):
            return Scalar("const", attr=entity.value), isinstance(entity.value, float)
        elif isinstance(entity, Constant):
            text = f"`{param.name}` of `{callee.name}` is {param.dtype}, and `{name}` is a bool"
            self.report.add("E0503", expr.span, text, "pass a number")
        elif name in BUILTIN:
            return Scalar("const", attr=BUILTIN[name]), True
        elif name not in self.signature.poisoned and name not in self.scope.poisoned:
            known = [p.name for p in self.signature.params if p.host]
            help = did_you_mean(name, [*known, *self.dims.axes]) or "take it as a scalar input, or write the number"
            self.report.add("E0101", expr.span, f"unknown name `{name}`", help)
        return None

    # -- what is left over --

    def _seen(self, expr: s.Expr) -> None:
        """Names in what is not looked at further count as used."""
        for e in s.walk(expr):
            if isinstance(e, s.Name):
                self._used.add(e.text)
                self.dims.used_axes |= {e.text} & set(self.dims.axes)

    def _unused(self) -> None:
        for output in self.signature.outputs:
            if output.name not in self.stores:
                text, help = f"`{output.name}` is never stored", f"add `{output.name} <- …` to the body"
                if output.name in self._bound:
                    help = f"`=` names a result without storing it: add `{output.name} <- {output.name}`"
                self.report.add("E0401", self._bound.get(output.name, output.span), text, help)
        used = self._used | {p.domain.other for p in self.signature.params if p.domain and p.domain.other}
        for p in self.signature.params:
            if p.name not in used:
                self.report.add("W0001", p.span, f"input `{p.name}` is not used")
        for name, span in self._bound.items():
            if name not in self._used:
                self.report.add("W0002", span, f"`{name}` is not used")
        for axis, span in self.dims.axes.items():
            if axis not in self.dims.used_axes:
                self.report.add("W0003", span, f"axis `{axis}` is not used")


def _selection(expr: s.Expr) -> tuple[s.Call | None, s.Attribute | None]:
    """A call, or one of its results: `k(…)`, `k(…).y`."""
    if isinstance(expr, s.Call):
        return expr, None
    if isinstance(expr, s.Attribute) and isinstance(expr.operand, s.Call):
        return expr.operand, expr
    return None, None


def _same(x: Number, y: Number | None) -> bool:
    """Whether two defaults are the same number: NaN is, and −0 is not 0."""
    return y is not None and (repr(float(x)) == repr(float(y)))


def _type(target: Tensor | Output) -> str:
    return f"{target.dtype}[{', '.join(map(str, target.dims))}]"
