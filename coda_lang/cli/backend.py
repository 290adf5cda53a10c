"""Where a kernel runs: the one place that knows the backends by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coda_lang.errors import BackendError

if TYPE_CHECKING:
    from coda_lang.api import Program
    from coda_lang.interp.run import Progress
    from coda_lang.ir.numerics import Array


@dataclass(frozen=True)
class Options:
    """How to run, whatever the backend."""

    tile: tuple[int, int]
    outputs: list[str] | None = None
    exact: bool = False
    check_domains: bool = False


@dataclass(frozen=True)
class Ran:
    """``outputs`` are on the host; ``note`` says where and how they were made; ``seconds`` is the run alone."""

    backend: str
    note: str
    outputs: dict[str, Array]
    seconds: float


def run(name: str, program: Program, arguments: Mapping[str, Any], options: Options, progress: Progress | None) -> Ran:
    """Run a kernel on backend `name`: auto, interp or cuda. Raises ArgumentError or BackendError."""
    if name == "cuda":
        raise BackendError("the cuda backend is not available on this command line", "run with --backend interp")
    start = time.perf_counter()
    result = program.interpret(
        **arguments,
        tile=options.tile,
        exact=options.exact,
        outputs=options.outputs,
        check=options.check_domains,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    rows, cols = options.tile
    note = f"interpreter{' in f64' if options.exact else ''}, tiles of {rows}x{cols}"
    return Ran("interp", note, dict(result.items()), seconds)
