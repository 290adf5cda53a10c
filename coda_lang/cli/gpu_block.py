"""`coda-run FILE` of a block on the GPU: from arrays on the host to results on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coda_lang.arrays import ITEM_BYTES, ArrayView
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.block import PlannedBlock
from coda_lang.blocks.expand import Launch
from coda_lang.blocks.program import BlockProgram
from coda_lang.call import check_domains
from coda_lang.cli import transfer
from coda_lang.cli.backend import Options, Ran, temporaries
from coda_lang.cli.comparison import Line, compare
from coda_lang.interp import DEFAULT_TILE
from coda_lang.interp.run import Progress
from coda_lang.ir.numerics import STORAGE, Array


def run(program: BlockProgram, arguments: Mapping[str, Any], options: Options, progress: Progress | None) -> Ran:
    """Compiles, runs once and copies the results back. To compare, each launch is held against the interpreter on the
    very arrays that it read. Raises ArgumentError or BackendError."""
    call = program.caller.call(transfer.to_device(program.name, arguments), options.outputs, None)
    if options.check_domains:
        check_domains(call)
    plan = program.gpu.plan(call)
    compared = _compare(program, plan, progress) if options.compare else ()
    # Not both: a second run would add to `inout` inputs again.
    seconds = 0.0 if options.compare else transfer.seconds(plan)
    host = transfer.to_host(call.binding, plan.outputs)
    name = device.get(transfer.DEVICE).name
    remarks = (temporaries(plan.memory), *plan.notes)
    facts = {"gpu": name, "launches": [_described(launch, planned) for launch, planned in plan.steps]}
    return Ran("cuda", name, host, seconds, DEFAULT_TILE, remarks, compared, facts)


def _described(launch: Launch, planned: Any) -> dict[str, Any]:
    return {"kernel": launch.kernel.name, "config": None if planned.config is None else str(planned.config)}


def _compare(program: BlockProgram, plan: PlannedBlock, progress: Progress | None) -> tuple[Line, ...]:
    lines: list[Line] = []
    for done, (launch, planned) in enumerate(plan.steps):
        kernel = program.program(launch.kernel)
        views = plan.views(launch)
        before = {n: _read(views[n]) for n in launch.tensors}
        planned()
        transfer.synchronise()
        updated = [p.name for p in launch.kernel.params if p.inout]
        after = {n: _read(views[n]) for n in updated} | {n: _read(v) for n, v in plan.results(launch).items()}
        given = {**before, **launch.scalars, **launch.axes}
        tile = planned.tile or DEFAULT_TILE
        for line in compare(kernel, given, list(launch.outputs), after, tile, None, None):
            lines.append(line.renamed(f"{launch.kernel.name}.{line.name}"))
        if progress is not None:
            progress(done + 1, len(plan.steps))
    return tuple(lines)


def _read(view: ArrayView) -> Array:
    """An array of the plan on the host, wherever in an allocation it lies."""
    import cupy

    item = ITEM_BYTES[view.dtype]
    count = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) + 1 if 0 not in view.shape else 0
    memory = cupy.cuda.UnownedMemory(view.pointer, max(count, 1) * item, view.owner)
    raw = cupy.ndarray((count * item,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0)).get()
    flat = raw.view(STORAGE[view.dtype])
    return np.lib.stride_tricks.as_strided(flat, view.shape, tuple(s * item for s in view.strides)).copy()
