"""One call in a block: the callee's axes and element types in terms of the caller's.

Axes are names, so two that a call makes equal must be the same extent of the block: `T` and `D` differ even where their
lengths would happen to agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coda_lang.errors import Note
from coda_lang.ir.program import Definition, DTypeParam, Kernel, Output, Param, Split, Tensor
from coda_lang.ir.report import Report
from coda_lang.ir.types import Dim, DType, axis_dim
from coda_lang.source import Span

_EXTENTS = "an argument has the callee's extents, with an extent of this block for each of its axes"


@dataclass(frozen=True)
class _Bound:
    """What an axis or dtype parameter was bound to, by which argument, and where."""

    to: Dim
    by: str
    span: Span


@dataclass
class Unifier:
    """Collects what the arguments of one call say. `splits` and `dtypes` are the block's own."""

    callee: Definition
    splits: tuple[Split, ...]
    dtypes: tuple[DTypeParam, ...]
    report: Report
    step: str  # names the step, whose tiles(X) are its own
    axes: dict[str, _Bound] = field(default_factory=dict)
    types: dict[str, tuple[DType | str, str]] = field(default_factory=dict)

    def axis(self, name: str, dim: Dim, by: str, span: Span) -> bool:
        """An axis of the callee has an extent of the block. False after an error."""
        known = self.axes.get(name)
        if known is None:
            self.axes[name] = _Bound(dim, by, span)
            return True
        if known.to == dim:
            return True
        text = f"axis {name} of `{self.callee.name}` is {dim} by {by}, and {known.to} by {known.by}"
        notes = [Note("the other is given here", known.span), self._declared()]
        help = "arguments along one axis have one extent"
        if dim.tiled and known.to.tiled:
            help = "two kernels may be tiled differently: combine the partials of each by itself"
        self.report.add("E0504", span, text, help, notes)
        return False

    def tensor(self, param: Param, given: Tensor, span: Span) -> bool:
        """An array is passed for an input. False after an error."""
        return self._type(param, given, span) and self._extents(param, given, span)

    def solve_splits(self, at: Span) -> bool:
        """N = H * D: two of them give the third, where the block has a name for it. False after an error."""
        for split in self.callee.splits:
            by, span = f"{split.axis} = {split.outer} * {split.inner}", self.callee.span
            whole, outer, inner = (self._value(d) for d in (axis_dim(split.axis), split.outer, split.inner))
            if whole is not None and outer is not None and inner is not None:
                if self._product(outer, inner) != whole:
                    text = (
                        f"`{self.callee.name}` has {by}, and this block does not say that {whole} = {outer} * {inner}"
                    )
                    help = f"split the axis here too: `{whole} = {outer} * {inner}`"
                    self.report.add("E0504", at, text, help, [self._declared()])
                    return False
                continue
            if whole is None and outer is not None and inner is not None:
                found = self._product(outer, inner)
                if found is not None:
                    self.axes[split.axis] = _Bound(found, by, span)
            elif whole is not None and (outer is None) != (inner is None):
                known, missing = (inner, split.outer) if outer is None else (outer, split.inner)
                assert known is not None
                factor = self._quotient(whole, known, outer is None)
                if factor is not None and missing.axis is not None:
                    self.axes[missing.axis] = _Bound(factor, by, span)
        return True

    def _no_whole(self, output: Output, dim: Dim, at: Span) -> None:
        text = f"`{output.name}` of `{self.callee.name}` would have {dim} columns" if dim.coef.denominator != 1 else ""
        text = text or f"`{output.name}` of `{self.callee.name}` would have a number of partials for each partial"
        self.report.add("E0504", at, text, _EXTENTS, [Note(f"`{output.name}` is declared here", output.span)])

    def missing(self, passed: frozenset[str]) -> str | None:
        """An axis that no argument fixes, not even when the block runs."""
        fixed = set(self.axes)
        for split in self.callee.splits:
            parts = [{axis} for axis in (split.axis, split.outer.axis, split.inner.axis) if axis is not None]
            unknown = [p for p in parts if not p <= fixed]
            if len(unknown) == 1:
                fixed |= unknown[0]
        return next((n for n in self._needed(passed) if n not in fixed), None)

    def _needed(self, passed: frozenset[str]) -> list[str]:
        """The axes whose lengths a call needs."""
        if not isinstance(self.callee, Kernel):
            return list(self.callee.axes)
        dims = [d for o in self.callee.outputs for d in o.dims]
        dims += [d for p in self.callee.params if p.name in passed for d in p.dims]
        dims += [v.attr for v in self.callee.values if v.op == "axis" and isinstance(v.attr, Dim)]
        return [d.axis for d in dims if d.axis is not None and not d.tiled]

    def result(self, output: Output, at: Span) -> tuple[DType | str, tuple[Dim, ...]] | str | None:
        """Element type and extents of a result, or the axis that nothing fixes; None after an error."""
        dims = []
        for d in output.dims:
            if d.axis is None:
                dims.append(d)
                continue
            known = self.axes.get(d.axis)
            if known is None:
                return d.axis
            dim = known.to.scaled(d.coef)
            if (dim.axis is None and dim.coef.denominator != 1) or (d.tiled and dim.tiled):
                self._no_whole(output, dim, at)
                return None
            dims.append(Dim(dim.coef, dim.axis, True, f"{self.step}:{d.axis}") if d.tiled else dim)
        dtype = output.dtype if isinstance(output.dtype, DType) else self.types[output.dtype][0]
        return dtype, tuple(dims)

    # -- element types --

    def _type(self, param: Param, given: Tensor, span: Span) -> bool:
        theirs = {given.dtype} if isinstance(given.dtype, DType) else set(self._choices(given.dtype))
        if isinstance(param.dtype, DType):
            wanted = {param.dtype}
        else:
            wanted = set(next(p.choices for p in self.callee.dtypes if p.name == param.dtype))
            known = self.types.get(param.dtype)
            if known is not None and known[0] != given.dtype:
                text = f"{shown(given)} is {given.dtype}, and {param.dtype} of `{self.callee.name}` is {known[0]}"
                return self._refuse(
                    "E0503", span, f"{text} by {known[1]}", param, given, "arrays of one type parameter have one type"
                )
            self.types[param.dtype] = (given.dtype, shown(given))
        if theirs <= wanted:
            return True
        names = " or ".join(sorted(map(str, wanted)))
        text = f"`{param.name}` of `{self.callee.name}` is {names}, and {shown(given)} is {given.dtype}"
        if not isinstance(given.dtype, DType):
            text += f" ({' | '.join(map(str, self._choices(given.dtype)))})"
        return self._refuse("E0503", span, text, param, given, "a block converts nothing: a map can")

    def _choices(self, name: str) -> tuple[DType, ...]:
        return next(p.choices for p in self.dtypes if p.name == name)

    # -- extents --

    def _extents(self, param: Param, given: Tensor, span: Span) -> bool:
        wanted, have = f"[{', '.join(map(str, param.dims))}]", f"[{', '.join(map(str, given.dims))}]"
        mismatch = f"`{param.name}` of `{self.callee.name}` is {wanted}, and {shown(given)} is {have}"
        if len(param.dims) != len(given.dims):
            return self._refuse("E0504", span, mismatch, param, given, _EXTENTS)
        by = shown(given)
        for dim, got in zip(param.dims, given.dims, strict=True):
            if dim.tiled:
                # However many partials come; but what they are partials of is known here.
                if got.tiled and dim.axis is not None and not self.axis(dim.axis, Dim(got.coef, got.axis), by, span):
                    return False
            elif dim.axis is None:
                if got != dim:
                    return self._refuse("E0504", span, mismatch, param, given, _EXTENTS)
            else:
                axis = got if dim.coef == 1 else got.scaled(1 / dim.coef)
                whole = axis.axis is not None or axis.coef.denominator == 1
                if not whole or (got.tiled and dim.coef != 1):
                    return self._refuse("E0504", span, mismatch, param, given, _EXTENTS)
                if not self.axis(dim.axis, axis, by, span):
                    return False
        return True

    def _value(self, dim: Dim) -> Dim | None:
        if dim.axis is None:
            return dim
        known = self.axes.get(dim.axis)
        return known.to if known is not None else None

    def _product(self, outer: Dim, inner: Dim) -> Dim | None:
        if outer.axis is None or inner.axis is None:
            return outer.scaled(inner.coef) if inner.axis is None else inner.scaled(outer.coef)
        own = next((s for s in self.splits if {s.outer, s.inner} == {outer, inner}), None)
        return axis_dim(own.axis) if own is not None else None

    def _quotient(self, whole: Dim, factor: Dim, is_inner: bool) -> Dim | None:
        if factor.axis is None and factor.coef:
            return whole.scaled(1 / factor.coef)
        own = next((s for s in self.splits if axis_dim(s.axis) == whole), None)
        if own is None or factor != (own.inner if is_inner else own.outer):
            return None
        return own.outer if is_inner else own.inner

    # -- messages --

    def _declared(self) -> Note:
        return Note(f"`{self.callee.name}` is declared here", self.callee.span)

    def _refuse(self, code: str, span: Span, text: str, param: Param, given: Tensor, help: str) -> bool:
        notes = [Note(f"`{param.name}` is declared here", param.span)]
        if given.span != span:
            notes.append(Note(f"{shown(given)} comes from here", given.span))
        self.report.add(code, span, text, help, notes)
        return False


def shown(tensor: Tensor) -> str:
    """How a message names an array: a result that has no name by the call that made it."""
    name, _, unnamed = tensor.name.partition("@")
    return f"the result of `{name}`" if unnamed else f"`{name}`"
