"""What `coda-run` does around a launch: arrays to the GPU, a run that is timed there, and results back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coda_lang import arrays
from coda_lang.binding import Binding
from coda_lang.errors import ArgumentError
from coda_lang.ir.numerics import Array

DEVICE = 0


def to_device(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the program `name`, its arrays as copies on the GPU. Raises ArgumentError if there are none."""
    if not any(isinstance(x, np.ndarray) for x in arguments.values()):
        raise ArgumentError(f"{name} takes no array: run it with --backend interp")
    return {n: arrays.to_device(x, DEVICE, n) if isinstance(x, np.ndarray) else x for n, x in arguments.items()}


def to_host(binding: Binding, results: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of a call's results, in the types that its signature names: CuPy holds f8 as bits."""
    types = {n: binding.dtype(binding.definition.target(n)).name for n in results}
    return {n: arrays.to_numpy(arrays.view(x, n, types[n]), n) for n, x in results.items()}


def seconds(run: Callable[[], object]) -> float:
    """How long a run takes on the GPU, from the call to its end."""
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def synchronise() -> None:
    import cupy

    cupy.cuda.get_current_stream(DEVICE).synchronize()
