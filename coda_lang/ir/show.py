"""The IR as text: a kernel's inputs and outputs, its values in order with their types and classes, and its stores."""

from __future__ import annotations

from coda_lang.ir.axes import Grid
from coda_lang.ir.ops import CLASSES, OPS
from coda_lang.ir.program import Attr, Block, Bound, Definition, Domain, Kernel, Output, Param, Scalar, Value
from coda_lang.ir.types import Dim, DType


def show(definition: Kernel | Block) -> str:
    """A kernel or block as the backends see it. It is for reading; nothing parses it."""
    return _block(definition) if isinstance(definition, Block) else _kernel(definition)


def _block(block: Block) -> str:
    lines = _signature(block)
    if block.by is not None:
        lines.append(f"  pieces  of {block.by[1]} along {block.by[0]}")
    types = {t.name: t for t in block.tensors}
    for i, step in enumerate(block.steps):
        results = ", ".join(f"{t} ({o})" if t != o else t for o, t in step.results)
        given = [f"{p}={t}" for p, t in step.tensors] + [f"{p}={_scalar(x)}" for p, x in step.scalars]
        line = f"  {i}: {results}{' = ' if results else ''}{step.callee.name}({', '.join(given)})"
        lines += ["", f"{line}  // line {step.span.line}"]
        lines.append(f"       where {', '.join(f'{n} = {d}' for n, d in step.axes)}")
        lines += [f"       {t}: {types[t].dtype}[{', '.join(map(str, types[t].dims))}]" for _, t in step.results]
    return "\n".join([*lines, "", *(f"  {o} <- {t}" for o, t in block.stores)])


def _scalar(x: Scalar) -> str:
    if not x.args:
        return _number(x.attr) if isinstance(x.attr, (bool, int, float)) else str(x.attr)
    if x.op == "neg":
        return f"-{_scalar(x.args[0])}"
    return f"({f' {_SIGNS[x.op]} '.join(map(_scalar, x.args))})"


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def _signature(definition: Definition) -> list[str]:
    lines = [f"{definition.kind} {definition.name}{_axes(definition)}  // {definition.span}"]
    targets = [("inout" if p.inout else "input", p.name, _param(p)) for p in definition.params]
    targets += [("output", o.name, _type(o) + ("?" if o.optional else "")) for o in definition.outputs]
    width = max((len(name) for _, name, _ in targets), default=0)
    return lines + [f"  {kind:<7} {name:<{width}}  {text}".rstrip() for kind, name, text in targets]


def _kernel(kernel: Kernel) -> str:
    lines = _signature(kernel)
    if kernel.rows is not None and kernel.cols is not None:
        lines.append(f"  tiles   of [{kernel.rows}, {kernel.cols}]")
    if kernel.product is not None:
        p = kernel.product
        left, right = p.a + (".T" if p.a_transposed else ""), p.b + (".T" if p.b_transposed else "")
        lines.append(f"  product {left} @ {right} over {p.contracted}")
    lines.append("")
    lines += _values(kernel)
    lines += [f"  {s.target} {'+<-' if s.accumulate else '<-'} %{s.value}" for s in kernel.stores]
    return "\n".join(lines)


def _axes(kernel: Definition) -> str:
    splits = {s.axis: f" = {s.outer} * {s.inner}" for s in kernel.splits}
    implied = {d.axis for s in kernel.splits for d in (s.outer, s.inner)}
    by = {kernel.by[0]: f" by {kernel.by[1]}"} if isinstance(kernel, Block) and kernel.by is not None else {}
    axes = [a + splits.get(a, "") + by.get(a, "") for a in kernel.axes if a not in implied or a in splits]
    if not axes:
        return ""
    dtypes = ", ".join(f"{d.name}: {' | '.join(map(str, d.choices))}" for d in kernel.dtypes)
    return f"<{', '.join(axes)}{'; ' if dtypes else ''}{dtypes}>"


def _type(target: Param | Output) -> str:
    if isinstance(target, Param) and target.host:
        return f"{target.dtype}"
    return f"{target.dtype}[{', '.join(map(str, target.dims))}]"


def _param(p: Param) -> str:
    text = _type(p)
    if p.domain is not None:
        text += f" {show_domain(p.domain)}"
    return text if p.default is None else f"{text} = {_number(p.default)}"


def _values(kernel: Kernel) -> list[str]:
    """One line for each value, in columns: number, type, operation, class and source line."""
    rows = []
    for i, v in enumerate(kernel.values):
        here = v.span.source.path == kernel.span.source.path
        line = "" if not v.span.end else f"line {v.span.line}" if here else f"{v.span.source.path}:{v.span.line}"
        rows.append((f"%{i}", str(v.type), _operation(v), CLASSES[_class(kernel, v)], line))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = []
    for number, type_, operation, class_, line in rows:
        text = (
            f"  {number:<{widths[0]}} = {operation:<{widths[2]}}  {type_:<{widths[1]}}  {class_:<{widths[3]}}  {line}"
        )
        lines.append(text.rstrip())
    return lines


def _operation(v: Value) -> str:
    args = ", ".join(f"%{a}" for a in v.args)
    attr = "" if v.attr is None else _attr(v.attr)
    if v.op in ("const", "load", "axis"):
        return f"{v.op} {attr}"
    if v.op == "gather":
        return f"gather {attr}[{args}]"
    if attr:
        args += (", " if args else "") + (f"over={attr}" if isinstance(v.attr, (Dim, tuple)) else attr)
    return f"{v.op} {args}".rstrip()


def _attr(attr: Attr) -> str:
    if isinstance(attr, tuple):
        return f"{attr[0]}, {attr[1]}"
    return str(attr) if isinstance(attr, (str, Dim, DType)) else _number(attr)


def _number(x: Attr) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    text = f"{x:.9g}" if isinstance(x, float) else str(x)
    return "-0.0" if text == "-0" else text  # as it is written: the integer has no sign


def _class(kernel: Kernel, v: Value) -> int:
    """The class of the paper; a load that is no tile is of class 2."""
    if v.op == "load" and kernel.rows is not None and kernel.cols is not None:
        return 3 if Grid(kernel.rows, kernel.cols).is_tile(v.type.dims) else 2
    if v.op == "load":
        return 0
    return OPS[v.op].cls


def show_domain(domain: Domain) -> str:
    """A domain as it is written."""
    if domain.low is not None and domain.high is not None:
        other = f" or {domain.other}" if domain.other else ""
        return f"in {_side(domain.low)}..{_side(domain.high)}{other}"
    if domain.low is not None:
        return f"{'>' if domain.low_strict else '>='} {_side(domain.low)}"
    assert domain.high is not None
    return f"{'<' if domain.high_strict else '<='} {_side(domain.high)}"


def _side(bound: Bound) -> str:
    if bound.dim is None:
        return f"{bound.offset:g}" if isinstance(bound.offset, float) else str(bound.offset)
    return f"{bound.dim}" + (f" + {bound.offset}" if bound.offset else "")
