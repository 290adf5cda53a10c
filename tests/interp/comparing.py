"""The interpreter's results of one call, held to the bounds of the error analysis; and results moved out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import coda_lang as coda
from coda_lang.compare import compare
from coda_lang.interp.bounds import Analysis
from coda_lang.ir.program import Kernel

Array = np.ndarray[Any, Any]


@dataclass
class Compared:
    """One call: the kernel that it specialises to, its arguments, and what the interpreter computed (in f32)."""

    kernel: Kernel
    arguments: Mapping[str, Any]
    tile: tuple[int, int]
    acc: Array | None
    results: dict[str, Array]

    @staticmethod
    def call(
        program: coda.Program,
        arguments: Mapping[str, Any],
        tile: tuple[int, int],
        outputs: list[str] | None = None,
        acc: Array | None = None,
    ) -> Compared:
        def own() -> dict[str, Any]:  # `inout` changes its input
            return {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}

        kernel = program.caller.call(own(), outputs, None, acc).kernel
        results = program.interpret(**own(), tile=tile, outputs=outputs, acc=acc)
        return Compared(kernel, arguments, tile, acc, dict(results.items()))

    def wrong(self, results: Mapping[str, Array], gpu: bool) -> dict[str, int]:
        compared = compare(self.kernel, self.arguments, results, self.tile, acc=self.acc, gpu=gpu)
        return {c.name: c.wrong for c in compared if not c.ok}

    def claims(self, gpu: bool) -> dict[str, Array]:
        """Where the analysis says something of each output's elements."""
        analysis = Analysis(self.kernel, self.arguments, tile=self.tile, gpu=gpu, acc=self.acc)
        return {n: analysis.output(n).error < np.inf for n in self.results}

    def moved(self, gpu: bool) -> dict[str, Array]:
        """The results, each element moved towards zero by four of its bounds, and by one place at least."""
        analysis = Analysis(self.kernel, self.arguments, tile=self.tile, gpu=gpu, acc=self.acc)
        return {n: _moved(x, analysis.output(n).error) for n, x in self.results.items()}


def _moved(x: Array, bound: Array) -> Array:
    if x.dtype == np.bool_:
        return ~x
    with np.errstate(all="ignore"):
        if x.dtype.kind == "i":
            return x + x.dtype.type(1)
        wide = x.astype(np.float64)
        side = np.where(wide > 0, -1.0, 1.0)
        there = (wide + side * 4 * np.where(np.isfinite(bound), bound, 0.0)).astype(x.dtype)
        near = np.nextafter(x, np.where(side > 0, 1.0, -1.0).astype(x.dtype))
        return np.where(np.isfinite(wide), np.where(there == x, near, there), np.zeros_like(x))
