"""The arguments of a call on a GPU, in as many copies as exceed its L2 cache, and outputs that are poisoned.

Each copy is a set; the calls of a series take one set after the other. Arrays that a kernel updates in place are
copies of their own in every set, and can be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from coda_lang import arrays
from coda_lang.arrays import ArrayView, packed_strides
from coda_lang.binding import Binding
from coda_lang.call import Call, Caller
from coda_lang.data import draw, shapes
from coda_lang.errors import ArgumentError
from coda_lang.ir.numerics import Array
from coda_lang.ir.program import Kernel, Param
from coda_lang.ir.types import const_dim

if TYPE_CHECKING:
    from coda_lang.backend_cutlass.planned import Planned
    from coda_lang.measure.gpu import GpuStopwatch

L2_BYTES = 60 * 2**20  # H100: 50 MB, H200: 50 MB, with room
MOST_SETS = 32
_BLOCK = 1 << 22  # elements that are drawn of an array; longer ones repeat them
_POISON = 0xFF  # NaN in every floating-point type


@dataclass(frozen=True)
class Prepared:
    """One set: a checked call, and what it writes."""

    call: Call[Kernel]
    outputs: dict[str, Any]


class Workload:
    """A call on one device, on as many sets of arguments as rotate through more than twice the L2 cache.

    Outputs whose shape does not depend on the tile are made once for each set, and every plan writes the same ones.
    """

    def __init__(self, caller: Caller[Kernel], arguments: Mapping[str, Any], outputs: Collection[str] | None) -> None:
        """`arguments` are CUDA arrays of one device, numbers and lengths. Those updated in place are copied.

        Raises:
            ArgumentError: as a call of the program would.
        """
        first = caller.call(arguments, outputs, None)
        if first.device is None:
            raise ArgumentError(f"{caller.ir.name}: this takes CUDA arrays")
        self.caller = caller
        self.kernel = first.kernel
        self.binding = first.binding
        self.device = first.device
        self.library = arrays.cuda_library(first.tensors.values())
        self._updated = {p.name for p in first.kernel.params if p.inout}
        self._pristine = {n: _copied(self.library, first.tensors[n]) for n in self._updated}
        used = sum(v.nbytes for v in first.tensors.values())
        count = min(MOST_SETS, max(1, ceil(2 * L2_BYTES / max(1, used))))
        self.sets = [self._set(caller, dict(arguments), first, outputs, i) for i in range(count)]

    def _set(
        self, caller: Caller[Kernel], given: dict[str, Any], first: Call[Kernel], outputs: Any, index: int
    ) -> Prepared:
        for name, view in first.tensors.items():
            if name in self._updated or (index and _packed(view)):
                given[name] = _copied(self.library, view)
        made = {}
        library = arrays.library(self.library)
        for o in first.kernel.outputs:
            if not any(d.tiled for d in o.dims):
                made[o.name] = library.empty(first.binding.shape(o), first.binding.dtype(o).name, self.device)
        return Prepared(caller.call(given, outputs, made), made)

    @property
    def first(self) -> Call[Kernel]:
        return self.sets[0].call

    def restore(self) -> None:
        """What is updated in place gets its first values back, in every set."""
        for name, array in self._pristine.items():
            for one in self.sets:
                arrays.library(self.library).copy(one.call.tensors[name].owner, array, self.device)

    def copied(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """What a run left, kept from the next one."""
        types = {n: self.binding.dtype(self.kernel.target(n)).name for n in results}
        return {n: _copied(self.library, arrays.view(x, n, types[n])) for n, x in results.items()}

    def once(self, plan: Planned, stopwatch: GpuStopwatch) -> dict[str, Any]:
        """One run to its end on first values and poisoned outputs."""
        self.restore()
        self.poison(stopwatch.fill, plan.outputs)
        results = plan()
        stopwatch.synchronize()
        return results

    def poison(self, fill: Callable[[ArrayView, int], None], results: Mapping[str, Any]) -> None:
        """Writes NaN wherever a call must write, so that what it leaves out is seen."""
        names = {o.name: self.binding.dtype(o).name for o in self.kernel.outputs}
        for name, array in results.items():
            if name in names:
                fill(arrays.view(array, name, names[name]), _POISON)


def drawn_on_device(
    kernel: Kernel,
    library: str,
    device: int = 0,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """Random arguments as `data.draw` makes them, on a GPU. Of a large array the first elements are drawn, whole rows;
    the rest repeats them.

    Raises:
        ArgumentError, BackendError: as `data.draw`; no memory is left.
    """
    _, binding = shapes(kernel, sizes=sizes, dtypes=dtypes, optional=optional)
    lengths = binding.extents
    part = draw(_cut(kernel, binding), seed=seed, sizes=lengths, dtypes=dtypes, optional=optional)
    made: dict[str, Any] = dict(part.arguments)
    for p in kernel.params:
        x = made.get(p.name)
        if isinstance(x, np.ndarray):
            cut = any(d.tiled for d in p.dims)
            made[p.name] = _repeated(library, device, p.name, x, x.shape if cut else binding.shape(p))
    return made


def _cut(kernel: Kernel, binding: Binding) -> Kernel:
    """The kernel with inputs of few rows: constant ones, so that axes and domains stay those of the call."""

    def cut(p: Param) -> Param:
        if not p.dims or any(d.tiled for d in p.dims):
            return p
        rows, *others = binding.shape(p)
        few = min(rows, max(1, _BLOCK // max(1, prod(others))))
        return replace(p, dims=tuple(map(const_dim, (few, *others))))

    return replace(kernel, params=tuple(map(cut, kernel.params)))


def _repeated(library: str, device: int, name: str, block: Array, shape: tuple[int, ...]) -> Any:
    """An array on the device whose rows are those of `block`, over and over."""
    there = uploaded(library, device, name, block)
    if block.shape == shape:
        return there
    made = arrays.library(library).empty(shape, arrays.view(block, name).dtype, device)
    for start in range(0, shape[0], block.shape[0]):
        rows = min(block.shape[0], shape[0] - start)
        arrays.library(library).copy(made[start : start + rows], there[:rows], device)
    return made


def uploaded(library: str, device: int, name: str, x: Array) -> Any:
    """A copy of a NumPy array on the device, held by `library`."""
    if library != "torch":
        return arrays.to_device(x, device, name)
    made = arrays.library(library).empty(x.shape, arrays.view(x, name).dtype, device)
    arrays.library(library).copy(made, arrays.to_torch(np.ascontiguousarray(x).reshape(x.shape)), device)
    return made


def _copied(library: str, view: ArrayView) -> Any:
    assert view.device is not None
    made = arrays.library(library).empty(view.shape, view.dtype, view.device)
    arrays.library(library).copy(made, view.owner, view.device)
    return made


def _packed(view: ArrayView) -> bool:
    return view.strides == packed_strides(view.shape) and view.pointer % 256 == 0
