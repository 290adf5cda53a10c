"""Tuning what a step of a model runs: each of its products once, for the shapes that it has there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coda_lang.api import Program
from coda_lang.arrays import ArrayView, packed_strides
from coda_lang.backend_cutlass import device
from coda_lang.call import Call
from coda_lang.errors import BackendError
from coda_lang.ir.program import Kernel
from coda_lang.measure.workload import drawn_on_device
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

    The step is rehearsed as by `precompile`, with what that says about it. Then each program with a product is tuned on
    random arguments of the shapes, types and strides that it met, on their GPU: some seconds each. The winners are kept
    in the cache folder, one after the other, where calls of all processes find them (docs/backend.md).

    Args:
        budget: how many schedules are compiled and timed for each, beside the default.
        again: tune also what was tuned before.
        workers: processes that compile; by default one for each core.
        progress: called with the program's name and shape, how many are done and how many there are.

    Returns:
        What was found, in the order of the step.

    Raises:
        BackendError: no usable GPU or no memory left, or a graph is being captured.
        RuntimeError: another rehearsal is under way.
    """
    device.get(torch.cuda.current_device() if torch.cuda.is_available() else 0)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise BackendError("tuning cannot be captured into a CUDA graph", "tune before the capture")
    products = _products(step, again)
    found = []
    for i, (program, call) in enumerate(products):
        if progress is not None:
            progress(f"{program.name} {'×'.join(map(str, program.gpu.shape(call)))}", i, len(products))
        outputs = [o.name for o in call.kernel.outputs]
        found.append(tuner.tune(program, drawn(program, call), outputs=outputs, budget=budget, workers=workers))
    return found


def _products(step: Callable[[], object], again: bool) -> list[tuple[Program, Call[Kernel]]]:
    """The calls to tune, one for each program, form and bucket of shapes that share a schedule."""
    found: dict[Any, tuple[Program, Call[Kernel]]] = {}
    for program, call in rehearsed(step):
        if call.kernel.product is not None and (again or program.gpu.tuned(call) is None):
            found.setdefault((program.gpu.form(call), keys.bucket(program.gpu.shape(call))), (program, call))
    return list(found.values())


def drawn(program: Program, call: Call[Kernel]) -> dict[str, Any]:
    """Random arguments for a call like this one, whose arrays lie as its own do."""
    passed = {p.name for p in call.kernel.params}
    optional = [p.name for p in program.ir.params if p.default is not None and p.name in passed]
    types = {n: t.name for n, t in call.binding.dtypes.items()}
    sizes = dict(call.binding.extents)
    made = drawn_on_device(program.ir, "torch", call.device or 0, sizes=sizes, dtypes=types, optional=optional)
    return {n: _laid(x, call.tensors[n]) if n in call.tensors and isinstance(x, Tensor) else x for n, x in made.items()}


def _laid(x: Tensor, view: ArrayView) -> Tensor:
    """x with the strides and the alignment of a view; as it is where elements of the view share memory."""
    if (view.strides == packed_strides(view.shape) and view.pointer % 16 == 0) or 0 in view.strides or not x.numel():
        return x
    offset = view.pointer % 16 // x.element_size()
    reach = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
    room = torch.empty(offset + reach + 1, dtype=x.dtype, device=x.device)
    return room.as_strided(view.shape, view.strides, offset).copy_(x)
