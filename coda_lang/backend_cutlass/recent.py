"""Calls that were made before: the same kernel on arrays of the same form runs again without being checked anew.

A call is recognised by the form of each argument: an array's library, shape, strides, element type, device and
alignment, or a number. Nothing of an earlier call is kept alive, and outputs are new arrays each time. What needs more
than new addresses is left to the usual way: copies of arrays that do not fit, arrays updated in place, host arrays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coda_lang import arrays
from coda_lang.arrays import Library
from coda_lang.backend_cutlass.abi import output_key
from coda_lang.backend_cutlass.launch import Plan
from coda_lang.backend_cutlass.planned import Planned

MOST = 128  # forms that one program remembers

Key = tuple[Any, ...]
Form = tuple[Key, dict[str, int]]  # what a call is recognised by, and the addresses of its arrays


@dataclass(frozen=True)
class _Made:
    """A call's plan, and the outputs to make for it: name, name among the plan's arrays, shape and element type."""

    plan: Plan
    library: Library
    device: int
    outputs: tuple[tuple[str, str, tuple[int, ...], str], ...]
    lock: threading.Lock = field(default_factory=threading.Lock)  # the plan's addresses are those of one call

    def __call__(self, pointers: dict[str, int]) -> dict[str, Any]:
        results = {}
        for name, key, shape, dtype in self.outputs:
            made = results[name] = self.library.empty(shape, dtype, self.device)
            pointers[key] = _pointer(made)
        with self.lock:
            self.plan.again(pointers)
        return results


class Recent:
    """The calls of one program, by their forms."""

    def __init__(self) -> None:
        self._made: dict[Key, _Made] = {}

    def clear(self) -> None:
        self._made.clear()

    def again(self, key: Key, pointers: dict[str, int]) -> dict[str, Any] | None:
        """Runs the call if one of its form was made before; None otherwise."""
        made = self._made.get(key)
        return None if made is None else made(pointers)

    def keep(self, form: Form, planned: Planned) -> None:
        """Remembers how a call ran, if that is all it takes to run another of its form."""
        (key, pointers), plan, call = form, planned.plan, planned.call
        kernel, views = call.kernel, call.tensors
        if not views.keys() <= pointers.keys():  # a number that became an array
            return
        if plan.copies or plan.empty or any(p.inout for p in kernel.params):
            return
        if len({v.library for v in views.values()}) > 1:  # their streams must be the same, each time
            return
        names = frozenset(p.name for p in kernel.params)
        outputs = tuple(
            (o.name, output_key(names, o.name), call.binding.shape(o, planned.tile), call.binding.dtype(o).name)
            for o in kernel.outputs
        )
        library = arrays.library(arrays.cuda_library(views.values()))
        assert call.device is not None
        while len(self._made) >= MOST:
            self._made.pop(next(iter(self._made)), None)
        self._made[key] = _Made(plan.detached(), library, call.device, outputs)


def form_of(arguments: Mapping[str, Any], outputs: Any) -> Form | None:
    """A call's form, if it has arrays and all of them lie on a GPU; None for one that goes the usual way."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if outputs is not None and not (isinstance(outputs, (list, tuple)) and all(isinstance(o, str) for o in outputs)):
        return None
    parts: list[Any] = [None if outputs is None else tuple(outputs)]
    pointers: dict[str, int] = {}
    for name, x in arguments.items():
        kind = type(x)
        if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
            if not x.is_cuda or x.layout is not torch.strided or x.is_neg() or arrays.wants_gradient(x):
                return None
            try:
                pointer = pointers[name] = x.data_ptr()
            except RuntimeError:  # one without memory of its own, as under vmap
                return None
            parts.append((name, x.shape, x.stride(), x.dtype, x.get_device(), pointer & 15))
        elif cupy is not None and kind is getattr(cupy, "ndarray", None):
            pointer = pointers[name] = x.data.ptr
            parts.append((name, x.shape, x.strides, x.dtype, x.device.id, pointer & 15))
        elif kind in (int, bool, float) or x is None:
            parts.append((name, kind, repr(x)))
        else:
            return None
    return (tuple(parts), pointers) if pointers else None


def _pointer(array: Any) -> int:
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr)
