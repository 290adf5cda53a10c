"""Calls that were made before: the same kernel on arrays of the same form runs again without being checked anew.

A call is recognised by the form of each argument: an array's library, shape, strides, element type, device and
alignment, or a number; with outputs that the caller gives, also by which arrays are the same. Nothing of an earlier
call is kept alive, and outputs that are not given are new arrays each time. What needs more than new addresses is left
to the usual way: copies of arrays that do not fit, arrays updated in place, given outputs that share a part of another
array's memory, host arrays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coda_lang import arrays
from coda_lang.arrays import Library
from coda_lang.backend_cutlass.abi import output_key
from coda_lang.backend_cutlass.launch import Plan
from coda_lang.backend_cutlass.planned import Planned

MOST = 128  # forms that one program remembers

Key = tuple[Any, ...]


class Form(NamedTuple):
    """What a call is recognised by, the addresses of its inputs, and the outputs that it gives."""

    key: Key
    pointers: dict[str, int]
    given: Mapping[str, Any]


@dataclass(frozen=True)
class _Made:
    """A call's plan, and its outputs: name, name among the plan's arrays, shape and element type."""

    plan: Plan
    library: Library
    device: int
    outputs: tuple[tuple[str, str, tuple[int, ...], str], ...]
    lock: threading.Lock = field(default_factory=threading.Lock)  # the plan's addresses are those of one call

    def __call__(self, form: Form) -> dict[str, Any]:
        results, pointers = {}, form.pointers
        for name, key, shape, dtype in self.outputs:
            given = form.given.get(name)
            made = results[name] = self.library.empty(shape, dtype, self.device) if given is None else given
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

    def again(self, form: Form) -> dict[str, Any] | None:
        """Runs the call if one of its form was made before; None otherwise."""
        made = self._made.get(form.key)
        return None if made is None else made(form)

    def keep(self, form: Form, planned: Planned) -> None:
        """Remembers how a call ran, if that is all it takes to run another of its form."""
        plan, call = planned.plan, planned.call
        kernel, views = call.kernel, call.tensors
        if not views.keys() <= form.pointers.keys():  # a number that became an array
            return
        if plan.copies or plan.empty or any(p.inout for p in kernel.params):
            return
        libraries = {v.library for v in (*views.values(), *call.out.values())}
        if len(libraries) > 1:  # their streams must be the same, each time
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
        self._made[form.key] = _Made(plan.detached(), library, call.device, outputs)


def form_of(arguments: Mapping[str, Any], outputs: Any, out: Any = None) -> Form | None:
    """A call's form, if it has arrays and all of them lie on a GPU; None for one that goes the usual way."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if outputs is not None and not (isinstance(outputs, (list, tuple)) and all(isinstance(o, str) for o in outputs)):
        return None
    parts: list[Any] = [None if outputs is None else tuple(outputs)]
    pointers: dict[str, int] = {}
    for name, x in arguments.items():
        found = _array(x, torch, cupy)
        if found is not None:
            parts.append((name, *found[0]))
            pointers[name] = found[1]
        elif type(x) in (int, bool, float) or x is None:
            parts.append((name, type(x), repr(x)))
        else:
            return None
    if not pointers:
        return None
    if out is None:
        return Form(tuple(parts), pointers, {})
    if not isinstance(out, Mapping) or not out:
        return None
    written: dict[str, int] = {}
    for name, x in out.items():
        found = _array(x, torch, cupy)
        if found is None:
            return None
        parts.append((name, "out", *found[0]))
        written[name] = found[1]
    shared = _shared({n: arguments[n] for n in pointers}, out, pointers, written)
    return None if shared is None else Form((*parts, shared), pointers, out)


def _array(x: Any, torch: Any, cupy: Any) -> tuple[Key, int] | None:
    """What an array on a GPU is recognised by, and its address; None for all else."""
    kind = type(x)
    if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
        if not x.is_cuda or x.layout is not torch.strided or x.is_neg() or arrays.wants_gradient(x):
            return None
        try:
            pointer = x.data_ptr()
        except RuntimeError:  # one without memory of its own, as under vmap
            return None
        return (x.shape, x.stride(), x.dtype, x.get_device(), pointer & 15), pointer
    if cupy is not None and kind is getattr(cupy, "ndarray", None):
        pointer = x.data.ptr
        return (x.shape, x.strides, x.dtype, x.device.id, pointer & 15), pointer
    return None


def _shared(
    inputs: Mapping[str, Any], out: Mapping[str, Any], pointers: Mapping[str, int], written: Mapping[str, int]
) -> Key | None:
    """Which arrays begin where an output does, by place; None if an output shares memory in any other way.

    Two calls of one form, in which the same arrays are the same and all else lies apart, are legal or not together.
    """
    starts = [*pointers.values(), *written.values()]
    spans = [_span(x, p) for x, p in zip((*inputs.values(), *out.values()), starts, strict=True)]
    same: list[tuple[int, int]] = []
    for i in range(len(inputs), len(spans)):
        first, past = spans[i]
        for j, (other_first, other_past) in enumerate(spans[:i]):
            if starts[i] == starts[j]:
                same.append((j, i))
            elif first < other_past and other_first < past:
                return None
    return tuple(same)


def _span(x: Any, pointer: int) -> tuple[int, int]:
    if hasattr(x, "element_size"):  # torch, whose strides count elements
        return arrays.span(pointer, x.shape, x.stride(), x.element_size(), x.element_size())
    return arrays.span(pointer, x.shape, x.strides, 1, x.dtype.itemsize)


def _pointer(array: Any) -> int:
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr)
