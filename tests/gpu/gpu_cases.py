"""What the GPU tests run: every program of `programs/`, in the shapes and types that break such kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.backend_cutlass.shapes import grid_of, has_heads_columns
from coda_lang.data import draw
from coda_lang.ir.program import Kernel

PROGRAMS = Path(__file__).parents[2] / "programs"

# Extents of the accumulator and the contracted axis. Rows of N = 130 elements are no multiple of 16 bytes.
SHAPES = {
    "tiles": {"M": 384, "N": 768, "K": 192},
    "ragged": {"M": 257, "N": 1160, "K": 200},
    "unaligned": {"M": 131, "N": 130, "K": 37},
    "small": {"M": 1, "N": 2, "K": 1},
    "primes": {"M": 7, "N": 526, "K": 13},
    "heads": {"M": 257, "N": 1152, "K": 200},  # of the kernels that read a table with a column for each of a head
    "no_rows": {"M": 0, "N": 128, "K": 64},
    "no_depth": {"M": 130, "N": 256, "K": 0},
}
HEADS = {"tiles": 64, "ragged": 8, "unaligned": 2, "small": 2, "primes": 2, "heads": 64, "no_rows": 32, "no_depth": 64}


@dataclass(frozen=True)
class Case:
    file: str
    kernel: str
    shape: str
    dtype: str  # of the 16-bit dtype parameters
    full: bool  # with every optional input and output
    config: str | None = None
    exact: bool = True  # operands are small integers, so that the accumulator has no error

    @property
    def extents(self) -> dict[str, int]:
        return SHAPES[self.shape]

    @property
    def head(self) -> int:
        return HEADS[self.shape]

    def __str__(self) -> str:
        text = f"{self.kernel}-{self.shape}-{self.dtype}" + ("-full" if self.full else "")
        return text + (f"-{self.config}" if self.config else "") + ("" if self.exact else "-random")

    @property
    def program(self) -> Program:
        return load(self.file)[self.kernel]

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """Host arrays, scalars and axis lengths of the call."""
        program = self.program
        ir = program.ir
        sizes = {n: x for n, x in self.extents.items() if n in ir.axes}
        for split in ir.splits:
            if split.inner.axis is not None:
                sizes[split.inner.axis] = max(self.head, 8) if kernel_sums_segments(ir) else self.head
                if kernel_sums_segments(ir):  # heads of 8 columns or more: N follows from H
                    sizes[split.axis] = -(-sizes[split.axis] // 8) * 8
        if ir.kind == "reduce":
            sizes = {n: max(x, 1) for n, x in sizes.items()}
        dtypes = {p.name: self.dtype for p in ir.dtypes if any(c.name == self.dtype for c in p.choices)}
        dtypes |= {p.name: "i64" if self.full else "i32" for p in ir.dtypes if p.name not in dtypes}
        optional = [p.name for p in ir.params if p.default is not None] if self.full else []
        arguments = draw(ir, seed=seed, sizes=sizes, dtypes=dtypes, optional=optional).arguments
        if self.exact and ir.product is not None:
            rng = np.random.default_rng(seed + 1)
            for name in (ir.product.a, ir.product.b):
                x = arguments[name]
                arguments[name] = rng.integers(-2, 3, x.shape).astype(x.dtype)
        return arguments

    @property
    def outputs(self) -> list[str] | None:
        return [o.name for o in self.program.ir.outputs] if self.full else None


@dataclass(frozen=True)
class SizedCase(Case):
    """A case whose shape is written as its extents: ``M129_N136_K64``, with heads of 2 columns, or of ``_D64``."""

    @property
    def extents(self) -> dict[str, int]:
        return {part[0]: int(part[1:]) for part in self.shape.split("_")}

    @property
    def head(self) -> int:
        return self.extents.get("D", 2)


def reads_heads(kernel: Kernel) -> bool:
    """Whether a table has columns that each head has."""
    tables = {str(v.attr) for v in kernel.values if v.op == "gather"}
    return any(has_heads_columns(grid_of(kernel), p.dims) for p in kernel.params if p.name in tables)


def kernel_sums_segments(kernel: Kernel) -> bool:
    return any(v.op == "segment_sum" for v in kernel.values)


@cache
def load(file: str) -> coda.Module:
    return coda.load(PROGRAMS / f"{file}.coda")


def own_programs() -> Iterator[tuple[str, str]]:
    """Each kernel, map and reduce where it is defined, once; a block's launches are among them."""
    seen = set()
    for path in sorted(PROGRAMS.glob("*.coda")):
        for name, program in load(path.stem).items():
            where = program.ir.span.source.path
            if isinstance(program, Program) and (where, name) not in seen:
                seen.add((where, name))
                yield path.stem, name


def all_cases() -> list[Case]:
    cases = []
    for file, kernel in own_programs():
        heads = reads_heads(load(file)[kernel].ir)
        for shape in SHAPES:
            if shape != "heads" or heads:
                cases.append(Case(file, kernel, shape, "bf16", True))
        if heads:
            cases.append(Case(file, kernel, "heads", "f16", False, exact=False))
        for shape in ("tiles", "unaligned"):
            cases.append(Case(file, kernel, shape, "f16", False, exact=False))
        cases.append(Case(file, kernel, "ragged", "bf16", True, exact=False))
    return cases


CONFIGS = (
    "128x128,cluster=2x1,pingpong,stages=3",
    "128x192,cluster=1x1,pingpong,stages=3,epilogue=32",
    "256x128,cluster=1x2,cooperative,stages=2,swizzle=1,epilogue=32,stores=1,loads=1",
    "64x128,cluster=1x1,pingpong,stages=4,raster=m",
    "128x128,cluster=2x2,cooperative,stages=3,epilogue=32",
    "128x256,cluster=4x1,cooperative,stages=2,epilogue=32",
)
# A width that is no multiple of 64, for operands whose memory runs along K. Calls of few rows have one of 32 anyway.
NARROW = "192x96,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1"
# Every width of subtiles, shares of one group of columns and of several, loops over subtiles.
HEADED = (
    "128x128,cluster=2x1,pingpong,stages=3",
    "128x192,cluster=1x1,pingpong,stages=3,epilogue=32",
    "128x256,cluster=2x1,cooperative,stages=3,stores=1",
    "128x256,cluster=4x1,cooperative,stages=2,epilogue=32",
    "64x64,cluster=2x1,pingpong,stages=3",
    "256x128,cluster=1x2,cooperative,stages=2,swizzle=1,epilogue=32,stores=1,rolled=1",
)
CONFIGURED = ("rmsnorm_swiglu", "residual_rms", "cross_entropy", "swiglu_bwd", "residual_rms_bwd", "linear_dw", "rope")


def config_cases() -> list[Case]:
    cases = [Case(f, f, "ragged", "bf16", True, config) for f in CONFIGURED for config in CONFIGS]
    cases += [Case(f, f, "ragged", "bf16", True, NARROW) for f in CONFIGURED[:3]]
    for head in (64, 96, 128, 192):
        shape = f"M257_N1152_K200_D{head}"
        cases += [SizedCase("rope", "rope_position", shape, "bf16", True, config) for config in HEADED]
    return cases
