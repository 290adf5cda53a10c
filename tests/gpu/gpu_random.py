"""Random programs for the GPU: each with a schedule, and with calls that one compiled kernel serves."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from evaluator import Errors

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.backend_cutlass import abi
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.backend_cutlass.config import Config, rejection
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.problem import is_long, problem
from coda_lang.call import Call
from coda_lang.errors import BackendError
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import Dim
from programs import MODES, data, random_extents, random_program

# The evaluator's bounds with the GPU's own errors; it rounds to nearest itself, half a unit. Sums come in any order.
GPU = Errors(
    {n: (op.gpu_ulp + 0.5, op.gpu_abs) for n, op in OPS.items()}, division=OPS["div"].gpu_ulp + 0.5, serial_sums=True
)

# Around tiles of 64 and 128, in both directions; rows of 130 bf16 are no multiple of 16 bytes.
QUICK = 100_000  # steps of loops inside loops, each of which may take 20 µs
LENGTHS = (1, 5, 8, 24, 37, 64, 65, 72, 127, 128, 129, 130, 136, 192, 200)
CONFIGS = tuple(
    map(
        Config.parse,
        (
            "64x64,cluster=1x1,pingpong,stages=3,epilogue=32,stores=1,loads=1",
            "64x64,cluster=2x1,pingpong,stages=2,epilogue=16,stores=1,loads=1",
            "64x128,cluster=1x2,pingpong,stages=3,swizzle=1,epilogue=32,stores=1,loads=1",
            "64x128,cluster=1x1,pingpong,stages=2,raster=m,epilogue=16,stores=1,loads=1",
            "128x64,cluster=1x1,cooperative,stages=2,epilogue=32,stores=2,loads=1",
            "128x128,cluster=2x1,cooperative,stages=2,swizzle=2,epilogue=16,stores=1,loads=1",
            "128x128,cluster=1x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
        ),
    )
)


def text_of(seed: int) -> str:
    """The program of a seed. The backend has no f8 operands, so those of the product become bf16."""
    return re.sub(r"^(\s+[ab]): f8e\dm\d\[", r"\1: bf16[", random_program(seed), flags=re.MULTILINE)


class Drawn:
    """A seed's program, the inputs and outputs of its calls, its schedule, and the extents of each mode's call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.text = text_of(seed)
        self.program: Program = coda.loads(self.text).program
        rng = random.Random(seed)
        ir = self.program.ir
        self.passed = frozenset(p.name for p in ir.params if p.default is None or rng.random() < 0.5)
        names = [o.name for o in ir.outputs]
        self.outputs = names if rng.random() < 0.5 else [n for n in names if rng.random() < 0.8] or names
        self.tiles = {d: rng.randrange(5) for p in ir.params for d in p.dims if d.tiled}  # of a reduce's inputs
        self.config: Config | None = None
        self.extents: dict[str, dict[str, int]] = {}
        draws = self._draws()
        first = next(draws)
        if ir.product is not None:
            self.config = self._config(self.call(first), rng)
        unit = self._emitted(first)
        if unit is None:
            first, unit = next((x, u) for x in draws if (u := self._emitted(x)) is not None)
        self.emitted = unit
        self.extents[MODES[0]] = first
        for mode in MODES[1:]:  # other shapes, if the same kernel serves them
            served = (x for _, x in zip(range(12), draws, strict=False) if self._same(x))
            self.extents[mode] = next(served, first)

    def _draws(self) -> Iterator[dict[str, int]]:
        ir = self.program.ir
        for i in range(100):
            rng = np.random.default_rng((self.seed, i))
            extents = random_extents(ir, rng, LENGTHS)
            for split in ir.splits:  # heads as wide as any
                if split.inner.axis is not None:
                    wider = int(rng.choice((1, 1, 2, 4, 8, 16)))
                    extents[split.inner.axis] *= wider
                    extents[split.axis] *= wider
            yield extents
        raise BackendError(f"no extents of 100 draws suit the tile of program {self.seed}")

    def _config(self, call: Call, rng: random.Random) -> Config:
        need = footprint(call.kernel, call.binding.dtypes, frozenset(), tap=True)
        fitting = [c for c in CONFIGS if rejection(c, need) is None]
        if not fitting:
            raise BackendError(f"program {self.seed}: no schedule has the shared memory")
        chosen = rng.choice(fitting)
        epilogue = problem(call.binding, need)
        if rng.random() < 0.25 or is_long(epilogue.weight, epilogue.held):  # minutes of compiling otherwise
            chosen = replace(chosen, rolled=int(chosen.parts > 1))
        return chosen

    def _emitted(self, extents: dict[str, int]) -> Emitted | None:
        """The kernel for these extents; None if heads would be cut by its tile, or if a run of it took seconds."""
        call = self.call(extents)
        unit = self.program.gpu.emit(call, self.config, self.program.ir.product is not None)
        length = call.binding.length
        return None if abi.misfit(unit, length) or abi.steps(unit, length) > QUICK else unit

    def _same(self, extents: dict[str, int]) -> bool:
        unit = self._emitted(extents)
        return unit is not None and unit.source == self.emitted.source

    def call(self, extents: dict[str, int]) -> Call[Kernel]:
        return self.program.caller.call(self.arguments(extents, "normal"), self.outputs, None)

    def arguments(self, extents: dict[str, int], mode: str, seed: int = 0) -> dict[str, Any]:
        kernel: Kernel = self.program.ir
        rng = np.random.default_rng((self.seed, MODES.index(mode), seed))
        arguments: dict[str, Any] = {}
        for p in kernel.params:
            if p.name in self.passed:
                shape = tuple(self._length(d, extents) for d in p.dims)
                arguments[p.name] = data(p, shape, extents, arguments, kernel, mode, rng)
        fixed = {d.axis for p in kernel.params if p.name in arguments for d in p.dims if not d.tiled}
        return arguments | {n: x for n, x in extents.items() if n not in fixed and n in kernel.axes}

    def _length(self, d: Dim, extents: dict[str, int]) -> int:
        if d.tiled:
            return self.tiles[d]
        return int(d.coef * (1 if d.axis is None else extents[d.axis]))


@cache
def drawn(seed: int) -> Drawn:
    return Drawn(seed)


@dataclass(frozen=True)
class RandomCase:
    """One call of a random program, as the harness runs it."""

    seed: int
    mode: str

    def __str__(self) -> str:
        return f"{self.seed}-{self.mode}"

    @property
    def program(self) -> Program:
        return drawn(self.seed).program

    @property
    def outputs(self) -> list[str]:
        return drawn(self.seed).outputs

    @property
    def config(self) -> Config | None:
        return drawn(self.seed).config

    @property
    def exact(self) -> bool:
        return self.mode == "integers"

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        d = drawn(self.seed)
        return d.arguments(d.extents[self.mode], self.mode, seed)
