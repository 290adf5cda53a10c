"""How near maps come to the memory's bandwidth: each beside a copy that moves as many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from groups import PROGRAMS

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.backend_cutlass.emit import MAP_TILE
from coda_lang.cost import cost
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.series import ROUNDS, Interleaved, medians
from coda_lang.measure.workload import drawn_on_device

TOKENS = 16384


class Case(NamedTuple):
    file: str
    kernel: str
    sizes: dict[str, int]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None


CASES = (
    Case("input_rms", "input_rms", {"M": TOKENS, "N": 8192}),
    Case("rms_bwd_map", "rms_bwd_map", {"M": TOKENS, "N": 8192}, ("o",), ("o_new", "dw")),
    Case("swiglu_bwd_map", "swiglu_bwd_map", {"M": TOKENS, "N": 8192}, (), ("dz",)),
    Case("act_bwd_map", "gelu_bwd_map", {"M": TOKENS, "N": 8192}),
    Case("rope_bwd", "rope_position_bwd_map", {"M": TOKENS, "D": 64, "H": 128, "P": 2048}, ("rotated",)),
    Case("rope_bwd", "rope_position_bwd_map", {"M": TOKENS, "D": 128, "H": 64, "P": 2048}, ("rotated",)),
    Case("cross_entropy_bwd_map", "cross_entropy_bwd_map", {"M": 4096, "N": 128256}),
    Case("cross_entropy_bwd_map", "cross_entropy_bwd_map", {"M": 4096, "N": 128256}, ("rstd",), ("da", "zdz")),
)  # fmt: skip


def moved(case: Case, program: Program) -> int:
    """The bytes of its arrays, each moved once."""
    assert isinstance(program.ir, Kernel)
    call = described_call(program.ir, sizes=case.sizes, inputs=case.inputs, outputs=case.outputs)
    return cost(call.binding, MAP_TILE).bytes


def bandwidths(rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """For each map its time and the copy's, interleaved, in milliseconds, and the bytes that both move."""
    import torch

    for case in CASES:
        program = coda.load(PROGRAMS / f"{case.file}.coda")[case.kernel]
        assert isinstance(program, Program)
        given = drawn_on_device(program.ir, "torch", sizes=case.sizes, optional=case.inputs)
        plan = program.plan(**given, outputs=case.outputs)
        total = moved(case, program)
        source = torch.zeros(total // 2, device="cuda", dtype=torch.uint8)
        target = torch.empty_like(source)
        timed = Interleaved(GpuStopwatch(0, "torch"))
        timed.add("map", plan)
        timed.add("copy", lambda source=source, target=target: target.copy_(source))  # type: ignore[misc]
        times = medians(timed.run(["map", "copy"], rounds))
        yield {
            "map": case.kernel,
            "sizes": case.sizes,
            "inputs": list(case.inputs),
            "bytes": total,
            "map_ms": times["map"],
            "copy_ms": times["copy"],
            "share": times["copy"] / times["map"],
        }
