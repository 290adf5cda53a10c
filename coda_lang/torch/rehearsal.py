"""Compiling what a step of a model needs, in parallel processes and before it runs.

A kernel takes seconds to compile when it is first called, one after the other. A rehearsal runs the step once with all
programs left out, to see which kernels it would run. It does so for the whole process, since a backward pass has
threads of its own: no other thread may run an operation meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from coda_lang.api import Program, Result
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.call import Call
from coda_lang.errors import BackendError
from coda_lang.ir.program import Kernel
from coda_lang.torch import calls

_under_way = threading.Lock()
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def precompile(step: Callable[[], object], workers: int | None = None) -> int:
    """Compile the kernels that `step()` would run, so that running it takes them from the cache.

    The step is run once, with zeros in place of every program's results: it may make losses and gradients, which are to
    be thrown away, but must not change what is to last, as an optimizer does, or a batch norm its statistics. Random
    numbers are drawn again afterwards. No other thread may run an operation meanwhile.

    Args:
        workers: processes; by default one for each core.

    Returns:
        How many kernels the step needs.

    Raises:
        BackendError: one cannot be compiled, or the packages of the `gpu` extra are missing.
        RuntimeError: another rehearsal is under way.
    """
    units = kernels(step)
    for outcome in compile_many(units, workers=workers):
        if isinstance(outcome, BackendError):
            raise outcome
    return len(units)


def kernels(step: Callable[[], object]) -> list[Emitted]:
    """The kernels that `step()` would run on a GPU, each once; its tensors may lie anywhere, nothing is computed."""
    units = (program.gpu.emit(call, program.gpu.config(call)) for program, call in rehearsed(step))
    return list({unit.source: unit for unit in units}.values())


def rehearsed(step: Callable[[], object]) -> list[tuple[Program, Call[Kernel]]]:
    """The calls that `step()` would make, one of each form: a layer's come again and again. Nothing is computed.

    Raises RuntimeError if another rehearsal is under way.
    """
    found: dict[Any, tuple[Program, Call[Kernel]]] = {}

    def rehearse(program: Program, outputs: Sequence[str], arguments: Mapping[str, Any]) -> Result:
        given = {n: x for n, x in arguments.items() if n != "out"}
        out: Mapping[str, torch.Tensor] = arguments.get("out", {})
        call = program.caller.call(given, outputs, out or None)
        views = (*call.tensors.items(), *((f"out {n}", v) for n, v in call.out.items()))
        layout = frozenset((n, v.shape, v.strides, v.dtype, v.pointer % 16) for n, v in views)
        key = (program, tuple(outputs), layout)
        if key not in found:
            found[key] = program, _let_go(call)
        shapes = program.out_shapes(outputs=outputs, **given)
        device = "cpu" if call.device is None else f"cuda:{call.device}"
        made = {
            n: torch.zeros(s.shape, dtype=_DTYPES[s.dtype], device=device) for n, s in shapes.items() if n not in out
        }
        made |= out
        return Result({n: made[n] if n in made else call.tensors[n].owner for n in call.order})

    if not _under_way.acquire(blocking=False):
        raise RuntimeError("another precompile or tune is under way in this process: one at a time")
    real, calls.runner = calls.runner, rehearse
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            step()
    finally:
        calls.runner = real
        _under_way.release()
    return list(found.values())


def _let_go(call: Call[Kernel]) -> Call[Kernel]:
    """The call without its arrays: what they look like is enough, and a step's are large."""
    tensors, out = ({n: replace(v, owner=None) for n, v in views.items()} for views in (call.tensors, call.out))
    return replace(call, tensors=tensors, out=out)
