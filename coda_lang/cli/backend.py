"""Where a kernel runs: the one place that knows the backends by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coda_lang import arrays
from coda_lang.arrays import F8
from coda_lang.blocks.program import BlockProgram
from coda_lang.cli import terminal
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.units import size
from coda_lang.data import DEFAULT_TILE
from coda_lang.errors import BackendError
from coda_lang.ir.types import DType
from coda_lang.program import Program

if TYPE_CHECKING:
    from coda_lang.blocks.arena import Arena
    from coda_lang.cli.comparison import Line
    from coda_lang.interp.run import Progress
    from coda_lang.ir.numerics import Array


Runnable = Program | BlockProgram


@dataclass(frozen=True)
class Options:
    """What the command line asks of a run. `tile` is the interpreter's, `config` and `compare` are the GPU's."""

    backend: str = "auto"
    tile: tuple[int, int] | None = None
    outputs: list[str] | None = None
    exact: bool = False
    check_domains: bool = False
    config: str | None = None
    compare: bool = False


@dataclass(frozen=True)
class Ran:
    """`outputs` are on the host; `note` says where and how they were made; `seconds` is the run alone; `remarks` are
    what made it slow; `compared` has each output beside the reference, if that was asked for; `facts` are for JSON.
    """

    backend: str
    note: str
    outputs: dict[str, Array]
    seconds: float
    tile: tuple[int, int]
    remarks: tuple[str, ...] = ()
    compared: tuple[Line, ...] = ()
    facts: Mapping[str, Any] | None = None


def run(program: Runnable, arguments: Mapping[str, Any], options: Options, progress: Progress | None) -> Ran:
    """Run a kernel where the options say. Raises ArgumentError or BackendError."""
    if choose(program, options) == "interp" or _only_interpreted(program, arguments, options):
        return _interpret(program, arguments, options, progress)
    from coda_lang.cli import gpu, gpu_block

    if isinstance(program, BlockProgram):
        return gpu_block.run(program, arguments, options, progress)
    return gpu.run(program, arguments, options, progress)


def choose(program: Runnable, options: Options) -> str:
    """``interp`` or ``cuda``. Auto is the GPU if there is one that can be used, but for what only the interpreter does.

    Raises:
        UsageError: options that do not go together.
        BackendError: the GPU is asked for and cannot be used.
    """
    if program.kind == "block" and options.config is not None:
        raise UsageError("--config is for one kernel, and a block launches several", "leave out --config")
    theirs = [o for o, given in (("--compare", options.compare), ("--config", options.config)) if given]
    own = [o for o, given in (("--exact", options.exact), ("--tile", options.tile)) if given]
    if program.kind == "reduce" and "--tile" in own:
        own.remove("--tile")  # it says how many partials are drawn, wherever they are combined
    if options.backend == "interp":
        if theirs:
            raise UsageError(f"{theirs[0]} is for the GPU", "leave out --backend interp")
        return "interp"
    if own and (theirs or options.backend == "cuda"):
        help = "the schedule fixes the tile: write --config 128x256" if own[-1] == "--tile" else "leave one of them out"
        raise UsageError(f"{own[-1]} is for the interpreter, {(theirs or ['--backend cuda'])[0]} for the GPU", help)
    if own:
        return "interp"
    from coda_lang.backend_cutlass import device

    if theirs or options.backend == "cuda":
        try:
            device.get(0)
        except BackendError as error:
            asked = theirs[0] if theirs else "--backend cuda"
            advice = terminal.for_the_gpu(error.help) if theirs else error.help
            raise BackendError(f"{asked} needs a Hopper GPU: {error.message}", advice) from None
        return "cuda"
    if device.available() is not None:
        return "interp"
    return _with_what_it_needs()


def _only_interpreted(program: Runnable, arguments: Mapping[str, Any], options: Options) -> bool:
    """Whether the call multiplies f8 operands, which the GPU path lacks. Raises BackendError if it must run there."""
    found = next((t for t in _operand_types(program, arguments) if t in F8), None)
    if found is None:
        return False
    text = f"the product of {found} operands does not run on the GPU yet"
    if options.backend == "cuda" or options.compare or options.config is not None:
        raise BackendError(f"{program.name}: {text}", "write --backend interp, or pass bf16 or f16 operands")
    terminal.warning(f"the GPU is not used: {text}")
    return True


def _operand_types(program: Runnable, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The element types of the products' operands; within a block, those that its kernels fix."""
    kernels = [program.ir] if isinstance(program, Program) else program.ir.kernels()
    for kernel in kernels:
        if kernel.product is None:
            continue
        dtype = kernel.param(kernel.product.a).dtype
        if isinstance(dtype, DType):
            yield dtype.name
        elif isinstance(program, Program) and kernel.product.a in arguments:
            yield arrays.view(arguments[kernel.product.a], kernel.product.a).dtype


def _with_what_it_needs() -> str:
    """There is a GPU: a missing package should not go unnoticed, but is no reason not to run."""
    from coda_lang.backend_cutlass import toolchain

    try:
        toolchain.find()
        arrays.library("cupy")
    except BackendError as error:
        terminal.warning(f"the GPU is not used: {error.message}", terminal.without_python(error.help))
        return "interp"
    return "cuda"


def _interpret(program: Runnable, arguments: Mapping[str, Any], options: Options, progress: Progress | None) -> Ran:
    tile = options.tile or DEFAULT_TILE
    start = time.perf_counter()
    result = program.interpret(
        **arguments,
        tile=tile,
        exact=options.exact,
        outputs=options.outputs,
        check=options.check_domains,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    note = f"interpreter{' in f64' if options.exact else ''}"
    if program.kind != "reduce":  # it takes as many partials as it is given
        note += f", tiles of {tile[0]}x{tile[1]}"
    remarks: tuple[str, ...] = ()
    if isinstance(program, BlockProgram):
        remarks = (temporaries(program.memory(**arguments, tile=tile, outputs=options.outputs)),)
    return Ran("interp", note, dict(result.items()), seconds, tile, remarks)


def temporaries(memory: Arena) -> str:
    """What a block's temporaries take."""
    text = f"{memory.launches} launches, {size(memory.bytes)} of temporaries"
    return text if memory.bytes == memory.total else f"{text} ({size(memory.total)} if none shared memory)"
