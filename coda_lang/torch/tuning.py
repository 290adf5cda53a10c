"""Tuning what a step of a model runs: each of its products once, for the shapes that it has there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coda_lang.api import Program
from coda_lang.call import Call
from coda_lang.ir.program import Kernel
from coda_lang.torch.rehearsal import rehearsed
from coda_lang.tuning import keys
from coda_lang.tuning import tune as tuner
from coda_lang.tuning.tune import Tuning

Progress = Callable[[str, int, int], None]


def tune(
    step: Callable[[], object], *, budget: int = 8, again: bool = False, workers: int | None = None,
    progress: Progress | None = None,
) -> list[Tuning]:  # fmt: skip
    """Find the fastest schedule of each product that `step()` runs, and keep it for the calls to come.

    The step is rehearsed as by `precompile`. Then each program with a product is tuned on random arguments of the
    shapes that it met, on device 0: some seconds each. The winners are kept in the cache folder, where calls of all
    processes find them (docs/backend.md).

    Args:
        budget: how many schedules are compiled and timed for each, beside the default.
        again: tune also what was tuned before.
        workers: processes that compile; by default one for each core.
        progress: called with the program's name and shape, how many are done and how many there are.

    Returns:
        What was found, in the order of the step.

    Raises:
        BackendError: no usable GPU, or the current stream is being captured into a graph.
    """
    products = _products(step, again)
    found = []
    for i, (program, call) in enumerate(products):
        if progress is not None:
            progress(f"{program.name} {'×'.join(map(str, program.gpu.shape(call)))}", i, len(products))
        found.append(tuner.tune(program, budget=budget, workers=workers, **request(program, call)))
    return found


def _products(step: Callable[[], object], again: bool) -> list[tuple[Program, Call[Kernel]]]:
    """The calls to tune, one for each program, form and bucket of shapes that share a schedule."""
    found: dict[Any, tuple[Program, Call[Kernel]]] = {}
    for program, call in rehearsed(step):
        if call.kernel.product is not None and (again or program.gpu.tuned(call) is None):
            found.setdefault((id(call.kernel), keys.bucket(program.gpu.shape(call))), (program, call))
    return list(found.values())


def request(program: Program, call: Call[Kernel]) -> dict[str, Any]:
    """The arguments of `coda_lang.tuning.tune.tune` for random calls like this one."""
    passed = {p.name for p in call.kernel.params}
    return {
        "sizes": dict(call.binding.extents),
        "dtypes": {n: t.name for n, t in call.binding.dtypes.items()},
        "inputs": [p.name for p in program.ir.params if p.default is not None and p.name in passed],
        "outputs": [o.name for o in call.kernel.outputs],
    }
