"""`coda-run FILE` on the GPU: from arrays on the host to results on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coda_lang import arrays
from coda_lang.api import Program
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.report import Report, spill_warning
from coda_lang.call import Call, Caller, check_domains
from coda_lang.cli import transfer
from coda_lang.cli.backend import Options, Ran
from coda_lang.cli.comparison import compare
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.interp import DEFAULT_TILE
from coda_lang.interp.run import Progress
from coda_lang.ir.numerics import Array
from coda_lang.ir.program import Kernel


@dataclass(frozen=True)
class Launched:
    """One run: results on the host, and how they came about; `acc` is the accumulator, if it was stored."""

    device: str
    outputs: dict[str, Array]
    acc: Array | None
    tile: tuple[int, int] | None
    config: Config | None
    report: Report
    remarks: tuple[str, ...]
    seconds: float


def run(program: Program, arguments: Mapping[str, Any], options: Options, progress: Progress | None) -> Ran:
    """Runs, and compares with the interpreter if that is asked for. Raises ArgumentError or BackendError."""
    if options.check_domains:
        check_domains(Caller(program.ir).call(arguments, options.outputs, None))
    done = launch(program, arguments, options)
    tile = done.tile or DEFAULT_TILE
    compared = (
        compare(program, arguments, options.outputs, done.outputs, tile, done.acc, progress) if options.compare else ()
    )
    facts = {
        "gpu": done.device,
        "config": None if done.config is None else str(done.config),
        "report": asdict(done.report),
    }
    spills = spill_warning(done.report, done.config)
    remarks = done.remarks if spills is None else (*done.remarks, spills)
    return Ran("cuda", _note(done), done.outputs, done.seconds, tile, remarks, compared, facts)


def launch(program: Program, arguments: Mapping[str, Any], options: Options) -> Launched:
    """Copies the arguments to the GPU, compiles, runs once and copies the results back."""
    caller = Caller(program.ir)
    gpu = GpuProgram(caller)
    call = caller.call(transfer.to_device(program.name, arguments), options.outputs, None)
    tap = _tap(gpu, call, options) if options.compare else None
    plan = gpu.plan(call, options.config, tap=tap)
    seconds = transfer.seconds(plan)
    host = transfer.to_host(call.binding, plan.outputs)
    acc = None if tap is None else arrays.to_numpy(tap, "acc")
    return Launched(
        device.get(transfer.DEVICE).name, host, acc, plan.tile, plan.config, plan.report, plan.notes, seconds
    )


def _tap(gpu: GpuProgram, call: Call[Kernel], options: Options) -> Any:
    """An array for the accumulator: what follows from it can be held to the bit. None if its store does not fit."""
    kernel = call.kernel
    if kernel.product is None:
        return None
    assert kernel.rows is not None
    assert kernel.cols is not None
    try:
        gpu.emit(call, gpu.config(call, options.config, True), True)
    except (ArgumentError, BackendError):
        return None
    shape = (call.binding.length(kernel.rows), call.binding.length(kernel.cols))
    return arrays.library("cupy").empty(shape, "f32", transfer.DEVICE)


def _note(done: Launched) -> str:
    parts = [done.device]
    if done.config is not None:
        parts.append(f"schedule {done.config}")
    if done.tile is not None:
        parts.append(f"tiles of {done.tile[0]}x{done.tile[1]}")
    report = done.report
    spent = report.emit_seconds + report.compile_seconds + report.load_seconds
    parts.append(f"from the cache in {spent:.2f} s" if report.cached else f"compiled in {spent:.1f} s")
    return ", ".join(parts)
