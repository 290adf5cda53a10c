"""A prepared call of a kernel: run again and again, or pointed at other arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from coda_lang import arrays
from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass.abi import Emitted, output_key
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.launch import Launchable, Plan
from coda_lang.backend_cutlass.report import Report
from coda_lang.call import Call, aliased
from coda_lang.errors import ArgumentError
from coda_lang.interp import DEFAULT_TILE, interpret
from coda_lang.ir.program import Kernel


@dataclass(frozen=True)
class Built:
    """A compiled kernel that can be launched."""

    emitted: Emitted
    launchable: Launchable
    report: Report


class Planned:
    """A prepared call. Calling it launches; ``outputs`` maps names to the arrays that each run writes."""

    def __init__(self, plan: Plan, call: Call[Kernel], config: Config | None, built: Built) -> None:
        """`call.out` has every output's array."""
        self._plan = plan
        self._call = call
        self._built = built
        self.config = config
        self.outputs = _results(call)

    @property
    def call(self) -> Call[Kernel]:
        return self._call

    @property
    def plan(self) -> Plan:
        """What a run launches."""
        return self._plan

    @property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of the accumulator's tile; None in a reduce."""
        return self._built.emitted.tile

    @property
    def report(self) -> Report:
        """What the compiler said, with the seconds that loading took."""
        return replace(self._built.report, load_seconds=self._built.launchable.load_seconds)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes each run slower than need be."""
        return self._plan.notes

    def __call__(self) -> dict[str, Any]:
        self._plan()
        if self._plan.empty:
            _fill_by_interpreter(self._call, self.tile)
        return self.outputs

    def bind(self, tensors: Mapping[str, Any]) -> None:
        """Points the plan at other arrays, each of the same shape, strides, type and device as the one it replaces.

        An output that has an input's name is marked: ``x'``.

        Raises:
            ArgumentError: an unknown name, an array that differs or is read-only though the kernel writes it, or one
                that shares memory with another as the arrays of a call may not; the plan stays as it was.
        """
        kernel, known = self._call.kernel, self._plan.views
        views = {n: arrays.view(x, n, known[n].dtype if n in known else None) for n, x in tensors.items()}
        moved = self._moved(views)
        for name in {*output_keys(kernel).values(), *(p.name for p in kernel.params if p.inout)} & views.keys():
            if views[name].readonly:
                raise ArgumentError(f"{kernel.name}: `{name}` is read-only, and the kernel writes it")
        if not _apart([*moved.tensors.values(), *moved.out.values()]):
            aliased(moved)
        self._point(views, moved)

    def point(self, views: Mapping[str, ArrayView]) -> None:
        """`bind` for views of arrays that may be read and written so, as whoever made the plan knows."""
        self._point(views, self._moved(views))

    def _moved(self, views: Mapping[str, ArrayView]) -> Call[Kernel]:
        call, keys = self._call, output_keys(self._call.kernel)
        return replace(
            call,
            tensors={n: views.get(n, v) for n, v in call.tensors.items()},
            out={n: views.get(keys[n], v) for n, v in call.out.items()},
        )

    def _point(self, views: Mapping[str, ArrayView], moved: Call[Kernel]) -> None:
        self._plan.bind(views)
        self._call, self.outputs = moved, _results(moved)


def output_keys(kernel: Kernel) -> dict[str, str]:
    """The names of the outputs' tensors, by output."""
    names = frozenset(p.name for p in kernel.params)
    return {o.name: output_key(names, o.name) for o in kernel.outputs}


def _results(call: Call[Kernel]) -> dict[str, Any]:
    """The arrays that a run writes, as a call returns them."""
    return {n: (call.out[n] if n in call.out else call.tensors[n]).owner for n in call.order}


def _apart(views: Iterable[ArrayView]) -> bool:
    """Whether the arrays lie one after the other in memory: quick to see, and usual."""
    spans = sorted(v.span for v in views)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _fill_by_interpreter(call: Call[Kernel], tile: tuple[int, int] | None) -> None:
    """What does not vary along an empty axis has values although no tile computes them."""
    written = call.out | {p.name: call.tensors[p.name] for p in call.kernel.params if p.inout}
    if not any(prod(view.shape) for view in written.values()):
        return
    host = {n: arrays.to_numpy(v, n) for n, v in call.tensors.items()}
    host |= {n: np.asarray(x) for n, x in call.scalars.items()}
    results = {n: arrays.to_numpy(v, n) for n, v in call.out.items()}
    interpret(call.kernel, call.binding, host, results, tile=tile or DEFAULT_TILE)
    for n, view in written.items():
        x = results[n] if n in results else host[n]
        if x.size and view.device is not None:
            source: Any = arrays.to_torch(x) if view.library == "torch" else arrays.to_device(x, view.device, n)
            arrays.library(view.library).copy(view.owner, source, view.device)
