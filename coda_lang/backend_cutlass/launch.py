"""From a cubin and the arguments of a call to a launch.

A call prepares a `Plan` (arrays checked and, where need be, copied to fit; the parameter block filled) and runs it.
A plan that is kept runs again for a few microseconds of host time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from copy import copy as copy_of
from dataclasses import dataclass, replace
from typing import Any

from coda_lang import arrays
from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass import device, driver, parameter_values
from coda_lang.backend_cutlass.abi import Emitted, Extent, grid
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.device import Device
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.backend_cutlass.parameter_values import Addresses, Block, Number
from coda_lang.backend_cutlass.staging import Copy, Needs, stage
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.types import Dim

_SWITCH = "CODA_EARLY"  # 0: no kernel is started before what is ahead of it in its stream is done
_DEFAULT_SHARED = 48 * 1024  # what a function may use without asking
_TEMPLATES = 256  # blocks kept for each kernel, one for each set of shapes, strides and scalars

Length = Callable[[Dim], int]


@dataclass(frozen=True)
class _Template:
    """A filled block, to be copied and pointed at the arrays of a call."""

    block: Block
    addresses: Addresses
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class _Loaded:
    device: Device
    function: int
    clusters: int  # that run at once


class Plan:
    """A launch with everything decided: `plan()` runs it on the current stream of the arrays' library.

    The plan keeps its arrays alive, and each run reads and writes them anew. `bind` points it at others. Running
    one plan from several threads is safe, binding it meanwhile is not.
    """

    def __init__(self, launchable: Launchable, loaded: _Loaded, template: _Template, views: dict[str, ArrayView],
                 fitting: dict[str, ArrayView], copies: tuple[Copy, ...]) -> None:  # fmt: skip
        self.views = views
        self.copies = copies
        self._fitting = fitting
        self._cuda = launchable.cuda
        self._emitted = launchable.emitted
        self._addresses = template.addresses
        self._grid = template.grid
        self.empty = 0 in template.grid  # nothing to launch
        self._loaded = loaded
        self._context = loaded.device.context
        self._library = arrays.library(arrays.cuda_library(views.values()))
        self._own(template.block)
        self._write()

    def _own(self, block: Block) -> None:
        """A block for this plan alone, and the launch that it is handed to."""
        self._block, emitted = block.copy(), self._emitted
        self._run = self._cuda.prepared(
            self._loaded.function,
            self._grid,
            emitted.threads,
            emitted.shared_bytes,
            self._block.arguments,
            early=emitted.early and os.environ.get(_SWITCH) != "0",
        )

    def _write(self) -> None:
        self._addresses.write(self._block, {n: v.pointer for n, v in self._fitting.items()}, self._cuda)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes this call slower than need be: one sentence for each array that is copied."""
        return tuple(map(str, self.copies))

    def __call__(self) -> None:
        """Copies what has to be, and launches.

        Raises:
            BackendError: the driver refused.
        """
        if self.empty:
            return
        for copy in self.copies:
            copy.bring()
        self._launch()
        for copy in self.copies:
            copy.take()

    def detached(self) -> Plan:
        """The plan without its arrays, for `again`. It must have no copies to make."""
        assert not self.copies
        other = copy_of(self)
        other.views, other._fitting = {}, {}
        other._own(self._block)
        return other

    def again(self, addresses: Mapping[str, int]) -> None:
        """Runs on arrays at other addresses, each of the form and alignment of the one that the plan was made for."""
        self._addresses.write(self._block, addresses, self._cuda)
        self._launch()

    def _launch(self) -> None:
        cuda = self._cuda
        stream = self._library.stream(self._loaded.device.ordinal)
        if cuda.current_context() == self._context:
            self._run(stream)
            return
        cuda.push(self._context)
        try:
            self._run(stream)
        finally:
            cuda.pop()

    def bind(self, tensors: Mapping[str, Any]) -> None:
        """Points the plan at other arrays, each of the same shape, strides, type and device as the one it replaces.

        Raises:
            ArgumentError: an unknown name, an array that differs, or one that is aligned otherwise; nothing is changed.
        """
        views = {name: arrays.view(array, name) for name, array in tensors.items()}
        for name, new in views.items():
            old = self.views.get(name)
            if old is None:
                raise ArgumentError(f"the plan has no array `{name}`; it has {', '.join(self.views)}")
            if _form(new) != _form(old) or new.device != old.device:
                raise ArgumentError(f"{name}: the plan was made for {_show(old)}, got {_show(new)}")
            if _aligned(new) != _aligned(old):
                raise ArgumentError(f"{name}: its address is aligned otherwise than the plan's; make a new plan")
        copied = {copy.name for copy in self.copies}
        self.copies = tuple(replace(c, array=views[c.name].owner) if c.name in views else c for c in self.copies)
        self.views.update(views)
        self._fitting.update({n: v for n, v in views.items() if n not in copied})
        self._write()


class Launchable:
    """A compiled kernel, loaded on each device when it is first used there.

    `cuda` and `devices` are the machine's driver and `device.get` unless given.
    """

    def __init__(
        self,
        cubin: Cubin,
        emitted: Emitted,
        cuda: Driver | None = None,
        devices: Callable[[int], Device] = device.get,
    ) -> None:
        self.cubin = cubin
        self.emitted = emitted
        self.load_seconds = 0.0  # spent so far, over all devices
        self._given = cuda
        self._devices = devices
        self._needs = Needs.of(emitted)
        self._extents = tuple(
            {f.source.dim for f in emitted.fields if isinstance(f.source, Extent)} | {dim for dim, _ in emitted.blocks}
        )
        self._loaded: dict[int, _Loaded] = {}
        self._templates: dict[tuple[Any, ...], _Template] = {}
        self._lock = threading.Lock()

    @property
    def cuda(self) -> Driver:
        return driver.load() if self._given is None else self._given

    def load(self, ordinal: int = 0, stream: int | None = None) -> _Loaded:
        """The kernel on a device; the current device stays as it is.

        Raises:
            BackendError: the device cannot run it, or `stream` is being captured into a graph (loading is not allowed
                then).
        """
        found = self._loaded.get(ordinal)
        if found is not None:
            return found
        if stream is not None:
            refuse_capture(stream, self.cuda)
        with self._lock:
            if ordinal not in self._loaded:
                start = time.perf_counter()
                where, cuda = self._devices(ordinal), self.cuda
                cuda.push(where.context)
                try:
                    function = cuda.load(self.cubin.data, self.cubin.entry)
                    if self.emitted.shared_bytes > _DEFAULT_SHARED:
                        cuda.allow_shared(function, self.emitted.shared_bytes)
                    clusters = self._clusters(function, where)
                finally:
                    cuda.pop()
                self.load_seconds += time.perf_counter() - start
                self._loaded[ordinal] = _Loaded(where, function, clusters)
            return self._loaded[ordinal]

    def _clusters(self, function: int, where: Device) -> int:
        """A persistent kernel has a multiprocessor for each of its blocks; larger clusters leave some of a GPC idle."""
        emitted = self.emitted
        if not emitted.persistent:
            return 0
        if emitted.cluster == (1, 1):
            return where.multiprocessors
        return self.cuda.active_clusters(function, emitted.cluster, emitted.threads, emitted.shared_bytes)

    def plan(
        self,
        tensors: Mapping[str, Any],
        scalars: Mapping[str, Number],
        length: Length,
        written: Collection[str] = (),
        updated: Collection[str] = (),
    ) -> Plan:
        """A launch for these arguments, checked against each other but not against the program's types.

        `tensors` holds every array of the block, outputs too; `written` names the outputs, `updated` the arrays that
        are read and written; `length` gives the extents.

        Raises:
            ArgumentError: host arrays, several devices, two libraries with different streams, or a number that does
                not fit.
            BackendError: the device cannot run it, no memory for a copy, or the kernel has to be loaded while the
                stream is being captured.
        """
        views = {name: arrays.view(array, name) for name, array in tensors.items()}
        ordinal = arrays.common_device(views)
        if ordinal is None:
            raise ArgumentError("the arrays are in host memory: copy them to a GPU, or run the interpreter")
        for name in (*written, *updated):
            if views[name].readonly:
                raise ArgumentError(f"{name}: is read-only, but the kernel writes it")
        stream = arrays.current_stream(views.values(), ordinal)
        loaded = self.load(ordinal, stream)
        fitting, copies = stage(self._needs, views, written, updated)
        key = (
            ordinal,
            tuple(_form(v) for v in fitting.values()),
            tuple(map(length, self._extents)),
            tuple(map(repr, scalars.values())),  # as text: 0.0 and -0.0 are equal, but not the same
            tuple(fitting),
            tuple(scalars),
        )
        template = self._templates.get(key)
        if template is None:
            block, addresses = parameter_values.fill(self.emitted, fitting, scalars, length, self.cuda)
            template = _Template(block, addresses, grid(self.emitted, length, loaded.clusters))
            while len(self._templates) >= _TEMPLATES:
                self._templates.pop(next(iter(self._templates)), None)
            self._templates[key] = template
        return Plan(self, loaded, template, views, fitting, copies)

    def __call__(
        self,
        tensors: Mapping[str, Any],
        scalars: Mapping[str, Number],
        length: Length,
        written: Collection[str] = (),
        updated: Collection[str] = (),
    ) -> None:
        """Plans and runs."""
        self.plan(tensors, scalars, length, written, updated)()


def refuse_capture(stream: int, cuda: Driver | None = None) -> None:
    """Call before compiling or loading anything for a call on `stream`.

    Raises:
        BackendError: the stream is being captured into a CUDA graph.
    """
    if (driver.load() if cuda is None else cuda).is_capturing(stream):
        raise BackendError(
            "the first call of a kernel compiles and loads it, which a CUDA graph capture does not allow",
            "call it once with the same types before the capture begins",
        )


def _form(view: ArrayView) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    return view.shape, view.strides, view.dtype


def _aligned(view: ArrayView) -> bool:
    return view.pointer % 16 == 0


def _show(view: ArrayView) -> str:
    where = "the host" if view.device is None else f"cuda:{view.device}"
    return f"{view.dtype}{list(view.shape)} with strides {list(view.strides)} on {where}"
