"""`--compare`: each output of the GPU beside the bound that it must keep, and beside the interpreter's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from coda_lang import compare as comparing
from coda_lang.api import Program
from coda_lang.arrays import view
from coda_lang.call import Caller
from coda_lang.cli.summary import json_number, shape
from coda_lang.cli.table import Column, number, table
from coda_lang.cli.terminal import paint
from coda_lang.interp.run import Progress
from coda_lang.ir.numerics import Array

KEY = """\
Errors are distances from exact arithmetic. Each element has a bound of its own: the one shown is that of the element
that uses most of it. Equal to the bit: to the interpreter{given}."""


@dataclass(frozen=True)
class Line:
    """One output: its largest error; the bound of the element that uses most of its own, and that share; whether bits
    were compared (only exact operations lead to it), and from what; how many elements are wrong.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    bound: float
    share: float
    to_the_bit: bool
    tapped: bool
    elements: int
    wrong: int
    first_wrong: tuple[int, ...] | None

    def renamed(self, name: str) -> Line:
        return replace(self, name=name)

    @property
    def verdict(self) -> str:
        if not self.wrong:
            return "equal to the bit" if self.to_the_bit else "within the bound"
        first = f", first at {list(self.first_wrong)}" if self.first_wrong else ""
        return f"WRONG: {self.wrong} of {self.elements} elements{first}"

    def as_json(self) -> dict[str, Any]:
        numbers = {n: json_number(getattr(self, n)) for n in ("error", "bound", "share")}
        return asdict(self) | numbers | {"shape": list(self.shape), "ok": not self.wrong}


def compare(
    program: Program,
    arguments: Mapping[str, Any],
    outputs: list[str] | None,
    results: Mapping[str, Array],
    tile: tuple[int, int],
    acc: Array | None,
    progress: Progress | None,
) -> tuple[Line, ...]:
    """Every output against exact arithmetic on the same arguments, and where only exact operations lead to it from the
    accumulator `acc` (or from the inputs, if there is no product) against the interpreter's bits.
    """
    kernel = Caller(program.ir).call(arguments, outputs, None).kernel
    exact = comparing.bit_equal_outputs(kernel) if acc is not None or kernel.product is None else set()
    whole = {c.name: c for c in comparing.compare(kernel, arguments, results, tile)}
    rest = {n: x for n, x in results.items() if n not in exact}
    behind = {c.name: c for c in comparing.compare(kernel, arguments, rest, tile, acc=acc)} if acc is not None else {}
    reference: Mapping[str, Array] = {}
    if exact:
        own: dict[str, Any] = {
            n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()
        }  # `inout` changes its input
        reference = dict(program.interpret(**own, tile=tile, acc=acc, outputs=outputs, progress=progress).items())
    lines = []
    for name, x in results.items():
        c = whole[name]
        places = [] if c.ok else [(c.wrong, c.first_wrong)]
        if name in behind and not behind[name].ok:
            places.append((behind[name].wrong, behind[name].first_wrong))
        if name in exact:
            wrong = np.argwhere(~comparing.same_bits(x, reference[name]))
            if len(wrong):
                places.append((len(wrong), tuple(int(i) for i in wrong[0])))
        most, first = max(places, default=(0, None), key=lambda place: place[0])
        measured = (c.error, c.bound, c.share, name in exact, acc is not None, x.size, most, first)
        lines.append(Line(name, view(x, name).dtype, x.shape, *measured))
    return tuple(lines)


def comparison_table(lines: tuple[Line, ...]) -> str:
    columns = [Column("output"), Column("dtype"), Column("shape"), Column("largest error", right=True)]
    columns += [Column("nearest to its bound", right=True), Column("share", right=True), Column("")]
    rows = [
        [
            x.name,
            x.dtype,
            shape(x.shape),
            number(x.error),
            *_nearest(x),
            paint(x.verdict, "red" if x.wrong else "green"),
        ]
        for x in lines
    ]
    given = ", given the GPU's accumulator" if any(x.tapped for x in lines) else ""
    return table(columns, rows) + "\n\n" + paint(KEY.format(given=given), "dim")


def _nearest(line: Line) -> tuple[str, str]:
    """The error of the element that uses most of its bound, with that bound; and the share."""
    there = line.share * line.bound if line.bound else line.error
    share = f"{line.share:.1%}" if line.share < 100 else "–"  # a bound of zero, or NaN where there should be a number
    return f"{number(there)} of {number(line.bound)}", share
