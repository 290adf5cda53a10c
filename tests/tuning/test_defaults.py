"""The schedule of a call that names none is what it was when its machine code was run on a GPU.

`defaults.txt` has each form of each program with the footprint of its epilogue, and below it the schedules with the
shapes that get them. A change of it is a change of what is verified, so it is made by hand:
`pytest tests/tuning/test_defaults.py --update-goldens`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.call import Call, Caller
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call

PROGRAMS = Path(__file__).parents[2] / "programs"
GOLDEN = Path(__file__).parent / "defaults.txt"
SHAPES = ((1, 4096), (64, 128), (65, 4096), (300, 4096), (512, 2048), (1024, 4096), (1100, 4096), (2000, 4096),
          (2048, 8192), (4096, 4096), (4096, 12288), (8192, 8192), (16384, 22016), (4096, 131072),
          (131072, 64))  # fmt: skip
DEPTH = 4096  # of the operands
DEEP = ((8192, 8192, 8192), (16384, 8192, 22016), (16384, 44032, 8192))
HEADS = (64, 128, 192, 256)  # of a program whose columns are heads, tried in turn: widths that divide the columns


def kernels() -> Iterator[Kernel]:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for program in coda.load(path).values():
            ir = program.ir
            if isinstance(ir, Kernel) and ir.product is not None and ir.span.source.path == str(path):
                yield ir


def call(kernel: Kernel, rows: int, cols: int, depth: int, head: int, whole: bool) -> Call[Kernel]:
    """A call without options, or with all inputs and outputs."""
    optional = [p.name for p in kernel.params if p.default is not None] if whole else []
    assert kernel.rows is not None
    assert kernel.cols is not None
    assert kernel.rows.axis is not None
    assert kernel.cols.axis is not None
    sizes = {kernel.rows.axis: rows, kernel.cols.axis: cols, "K": depth}
    sizes |= {s.inner.axis: head for s in kernel.splits if s.inner.axis is not None}
    outputs = [o.name for o in kernel.outputs] if whole else None
    return described_call(kernel, sizes=sizes, inputs=optional, outputs=outputs)


def lines() -> Iterator[str]:
    for kernel in kernels():
        gpu = GpuProgram(Caller(kernel))
        for whole in (False, True):
            for head in HEADS if kernel.splits else (0,):
                found: dict[str, list[str]] = {}
                need = None
                for rows, cols, depth in (*((*shape, DEPTH) for shape in SHAPES), *DEEP):
                    if head and cols % head:
                        continue
                    made = call(kernel, rows, cols, depth, head, whole)
                    need = footprint(made.kernel, made.binding.dtypes)
                    config = str(gpu.untuned(made))
                    found.setdefault(config, []).append(f"{rows}x{cols}" + f"x{depth}" * (depth != DEPTH))
                assert need is not None
                title = f"{kernel.name} {'with all options' if whole else 'without options'}"
                title += f", heads of {head}" if head else ""
                yield f"{title}: {need.load_bytes:g} loaded, {need.store_bytes:g} stored, {need.reduce_bytes:g} reduced"
                yield from (f"    {config}: {' '.join(at)}" for config, at in found.items())


def test_parts_without_a_tile_change_the_default() -> None:
    for kernel in kernels():
        gpu, made = GpuProgram(Caller(kernel)), call(kernel, 64, 128, DEPTH, 64, False)
        usual = gpu.untuned(made)
        assert gpu.config(made, "serpentine=0") == replace(usual, serpentine=0)


def test_the_defaults_are_those_that_were_verified(request: pytest.FixtureRequest) -> None:
    found = "\n".join(lines()) + "\n"
    if request.config.getoption("--update-goldens"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")
