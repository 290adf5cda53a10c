"""Writes `operations.md` and `errors.md` from the tables of the package: `python docs/generate.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import coda_lang as coda
from coda_lang.codes import BESIDE, CODES
from coda_lang.ir.check import prelude
from coda_lang.ir.module import FunctionEntity
from coda_lang.ir.ops import CLASSES, OPS, Op

HERE = Path(__file__).parent
KINDS = {"F": "float", "I": "integer", "B": "bool", "N": "number", "A": "any"}
SPECIAL = [np.nan, -np.inf, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, np.inf]
# How an operation is written where that is not `name(x, …)` or an infix symbol.
FORMS = {
    "neg": "-x", "not": "not x", "to_f32": "f32(x)", "round": "round<bf16>(x)", "gather": "table[i, ...]",
    "even": "pairs(x), first", "odd": "pairs(x), second", "const": "1.0, true", "axis": "N", "load": "x",
    "acc": "a @ b.T", "pick": "pick(x, i, ignore=j)", "onehot": "onehot(i)", "select": "select(c, x, y)",
    "reduce_sum": "sum(x, over=N)", "reduce_max": "max(x, over=N)", "reduce_min": "min(x, over=N)",
}  # fmt: skip

ERRORS_INTRO = """\
# Errors and warnings

Every message has a code, a place and, with few exceptions, what to write instead:

```
swiglu.coda:9:14: error[E0101]: unknown name `rst`
    9 |     s = h * rst
      |             ^^^
  help: did you mean `rstd`?
```

All mistakes of a file and its imports are reported at once, in source order; 20 are shown and the rest is counted.
What follows from a mistake is not reported again. `CodaError.diagnostics` holds them as objects with `code`,
`span`, `message`, `help` and `notes`; `coda-run explain E0101` shows an entry of this page. Warnings (W…) do not
stop a program.
"""

OPERATIONS_INTRO = """\
# Operations

What the language can compute, with its primitive class in the CODA paper (arXiv 2605.19269, §3.1). Arithmetic is
f32 and never contracted; NaN, infinities and signed zeros follow IEEE 754, and subnormal numbers are kept. Every
NaN equals every other.

*float* is f32, *integer* i64, *bool* bool; a *number* is a float or an integer, and operands that are *number* or
*any* are of one kind.

The last column bounds the error of one evaluation on the GPU against the meaning given here (which the interpreter
computes in f64 and rounds once): units in the last place of the f32 result, plus an absolute term. *exact* is equal
to the bit. An absolute term of 2⁻¹²⁶ means that a subnormal result may come out as 0. Sums are added in an order
that is not specified, and are the same bits on every run.
"""


def signature(op: Op) -> str:
    return f"{', '.join(KINDS[p] for p in op.params) or '–'} → {KINDS[op.result]}"


def form(op: Op) -> str:
    if op.name in FORMS:
        return FORMS[op.name]
    if op.symbol is not None:
        return f"x {op.symbol} y"
    arguments = ", ".join("xyz"[: len(op.params)])
    if op.cls in (4, 5):
        return f"{op.name}({arguments}, over={'D' if op.name == 'segment_sum' else 'N'})"
    return f"{op.name}({arguments})"


def power(number: float) -> str:
    exponent = round(np.log2(number))
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def gpu_error(op: Op) -> str:
    if op.summed:
        return "by the order of the sum"
    if not op.gpu_ulp and not op.gpu_abs:
        return "exact"
    return f"{op.gpu_ulp:g} ulp" + (f" + {power(op.gpu_abs)}" if op.gpu_abs else "")


def number(x: float) -> str:
    """A value as the page shows it."""
    if np.isnan(x):
        return "NaN"
    if np.isinf(x):
        return "∞" if x > 0 else "−∞"
    return f"{x:.6g}".replace("-", "−")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def special_values(name: str) -> list[str]:
    """What a function of one float gives at the special values, by the interpreter."""
    text = f"map m<M, N>(x: f32[M, N]) -> (y: f32[M, N]) {{ y <- {name}(x) }}"
    out = coda.loads(text).m(x=np.array([SPECIAL], np.float32))
    return [number(float(y)) for y in out.y[0]]


def operations() -> str:
    lines = [OPERATIONS_INTRO]
    for cls in (1, 2, 3, 4, 5, 0):
        title = f"Class {cls}: {CLASSES[cls]}" if cls else "Reduces"
        lines += [f"## {title}", ""]
        identity = any(op.identity is not None for op in OPS.values() if op.cls == cls)
        lines.append(f"| written | takes → gives | meaning |{' identity |' if identity else ''} GPU error |")
        lines.append("| --- | --- | --- | --- |" + (" --- |" if identity else ""))
        for op in (op for op in OPS.values() if op.cls == cls):
            start = "" if op.identity is None else number(op.identity)
            extra = f" {start} |" if identity else ""
            lines.append(f"| `{cell(form(op))}` | {signature(op)} | {cell(op.doc)} |{extra} {gpu_error(op)} |")
        lines.append("")
    lines += [
        "## Functions",
        "",
        "Compositions of class 1 that every file can call; each step has its own error. `fn` defines more.",
        "",
        "| function | meaning |",
        "| --- | --- |",
    ]
    functions = {n: e for n, e in prelude().names.items() if isinstance(e, FunctionEntity)}
    for name, entity in functions.items():
        arguments = ", ".join(p.name for p in entity.function.params)
        lines.append(f"| `{name}({arguments})` | {cell(entity.function.doc or '')} |")
    unary = [op.name for op in OPS.values() if op.params in ("F", "N") and op.cls == 1 and op.callable]
    unary += [name for name, entity in functions.items() if len(entity.function.params) == 1]
    lines += [
        "",
        "## At special values",
        "",
        "±10⁻⁴⁰ are subnormal.",
        "",
        f"| x | {' | '.join(number(x) for x in SPECIAL)} |",
        "| --- |" + " --- |" * len(SPECIAL),
        *(f"| `{name}` | {' | '.join(special_values(name))} |" for name in unary),
        "",
        "Of two arguments: max(NaN, x) and min(NaN, x) are NaN; max(+0, −0) is +0 and min(+0, −0) is −0 in either",
        "order; comparisons with NaN are false, but for `!=`; x / 0 is ±∞, and NaN if x is 0 or NaN; idiv(i, 0) and",
        "i % 0 are 0; `clamp` keeps NaN; what `select` does not select has no effect. A store to f8 clamps to the",
        "largest finite value first (±448, ±57344), so ±∞ become that; NaN stays NaN.",
        "",
    ]
    return "\n".join(lines)


def errors() -> str:
    beside = ", ".join(f"`{name}`" for name in BESIDE)
    lines = [ERRORS_INTRO, f"The examples that import something are `program.coda`, with {beside} beside it.", ""]
    lines += ["| code | |", "| --- | --- |", *(f"| [{c}](#{c.lower()}) | {e.title} |" for c, e in CODES.items()), ""]
    for code, entry in CODES.items():
        lines += [f'<a id="{code.lower()}"></a>', "", f"## {code}: {entry.title}", "", entry.text, ""]
        for title, program in (("Wrong", entry.wrong), ("Right", entry.right)):
            if program is not None:
                lines += [f"{title}:", "", "```", program.rstrip("\n"), "```", ""]
    return "\n".join(lines)


PAGES = {"operations.md": operations, "errors.md": errors}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
