"""Bodies: from statements to typed values and stores."""

from __future__ import annotations

from coda_lang.errors import Note, did_you_mean
from coda_lang.ir import rules
from coda_lang.ir.expressions import ExpressionChecker, Frame
from coda_lang.ir.module import Scope
from coda_lang.ir.program import Output, Param, Store
from coda_lang.ir.values import AbandonedError
from coda_lang.parser import syntax as s


class BodyChecker(ExpressionChecker):
    """Elaborates one kernel's body; `values` and `stores` are its result."""

    def store(self, statement: s.StoreTo, frame: Frame) -> None:
        operand = self.expr(statement.value, frame)
        target = self.store_target(statement)
        if target is None or operand is None:
            return
        kinds = self.signature.kinds(target.dtype)
        kind = "F" if "float" in kinds else "I" if "int" in kinds else "B"
        value = self.as_kind(operand, "I" if kind == "I" else "F", statement.value.span)
        if value is None:
            return
        if self.kind_of(value) != kind:
            shown = f"{self.show(operand, statement.value.span)}, and `{target.name}` holds {target.dtype}"
            help = {"F": "convert with f32(…)", "B": "compare, or write `true` or `false`"}.get(kind)
            self.report.add("E0405", statement.span, shown, help or f"declare `{target.name}: f32[…]`")
            return
        if rules.storable(self.report, self.grid, target, self.values[value], statement):
            self.stores.append(Store(target.name, value, statement.accumulate, span=statement.span))

    def store_target(self, statement: s.StoreTo) -> Param | Output | None:
        name, span = statement.target.text, statement.target.span
        param = self.signature.param(name)
        output = self.signature.output(name)
        if name in self._stored:
            note = [Note("first stored here", self._stored[name])]
            self.report.add("E0402", span, f"`{name}` is stored twice", "each output is stored exactly once", note)
            return None
        self._stored[name] = span
        if output is not None:
            if statement.accumulate:
                text = f"`{name}` is an output and has no old value to add to"
                self.report.add("E0403", span, text, f"store with `<-`, or take `inout {name}: …` as an input")
                return None
            return None if name in self.signature.poisoned else output
        if param is not None:
            if not param.inout:
                help = (
                    f"declare it `inout {name}: …` and add with `+<-`" if statement.accumulate else "declare an output"
                )
                code = "E0403" if statement.accumulate else "E0404"
                self.report.add(code, span, f"`{name}` is an input and cannot be stored to", help)
                return None
            if not statement.accumulate:
                self.report.add("E0404", span, f"`{name}` is inout: it is added to", f"write `{name} +<- x`")
                return None
            self._used_params.add(name)
            return None if name in self.signature.poisoned else param
        if name not in self.signature.poisoned:
            self._misnamed = True
            known = [o.name for o in self.signature.outputs]
            help = did_you_mean(name, known) or f"the outputs are {', '.join(known) or 'none'}; bind a value with `=`"
            self.report.add("E0407", span, f"there is no output `{name}`", help)
        return None

    def _never_stored(self, target: Output | Param, frame: Frame) -> None:
        name = target.name
        if isinstance(target, Param):
            self.report.add("E0401", target.span, f"`{name}` is never stored", f"add `{name} +<- …` to the body")
        elif name not in frame.places:
            self.report.add("E0401", target.span, f"`{name}` is never stored", f"add `{name} <- …` to the body")
        else:
            text = f"`{name}` is an output, and `=` names a value without storing it"
            help = f"add `{name} <- {name}`"
            binds = [b for b in self._definition.body if isinstance(b, s.Bind) and b.targets[0].text == name]
            if name not in frame.used and binds and len(binds[0].targets) == 1:
                value = " ".join(binds[0].value.span.text.split())
                help = f"write `{name} <- {value if len(value) <= 40 else '…'}`"
            self.report.add("E0401", frame.places[name], text, help)

    def run(self, scope: Scope) -> None:
        """Check the whole body."""
        frame = Frame(scope)
        for statement in self._definition.body:
            if isinstance(statement, s.Bind):
                self.bind(statement, frame)
            elif isinstance(statement, s.Perform):
                self.refuse_perform(statement)
            else:
                self.store(statement, frame)
        inout = [p for p in self.signature.params if p.inout]
        written: list[Param | Output] = [*self.signature.outputs, *inout]
        for target in written:
            missing = target.name not in self._stored and target.name not in self._misread
            if missing and not self._misnamed:  # a misnamed store was meant for one of them
                self._never_stored(target, frame)
        self._used_params |= {p.domain.other for p in self.signature.params if p.domain and p.domain.other}
        for param in self.signature.params:
            if param.name not in self._used_params and not param.inout:
                self.report.add("W0001", param.span, f"input `{param.name}` is not used")
        for name, span in frame.places.items():
            if name not in frame.used:
                self.report.add("W0002", span, f"`{name}` is not used")


__all__ = ["AbandonedError", "BodyChecker"]
