"""Copies for arrays that a kernel cannot address as they lie in memory.

A kernel reads an array through a TMA descriptor, which wants aligned rows, or through a pointer and the strides
that its block has fields for; along all other dimensions it takes the array to be packed. An array that is
neither is copied to a buffer that is, on the call's stream, and back if the kernel writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from coda_lang import arrays
from coda_lang.arrays import ITEM_BYTES, ArrayView, packed_strides
from coda_lang.backend_cutlass import tensormap
from coda_lang.backend_cutlass.abi import TMA_ALIGNMENT, Emitted, Stride, TensorMap


@dataclass(frozen=True)
class Needs:
    """How a kernel addresses its arrays: through descriptors, and which strides it is told."""

    mapped: frozenset[str]
    strided: frozenset[tuple[str, int]]

    @staticmethod
    def of(emitted: Emitted) -> Needs:
        sources = [f.source for f in emitted.fields]
        return Needs(
            frozenset(s.tensor for s in sources if isinstance(s, TensorMap)),
            frozenset((s.tensor, s.dimension) for s in sources if isinstance(s, Stride)),
        )

    def misfit(self, name: str, view: ArrayView) -> str | None:
        """Why the kernel needs a copy of an array, or None if it does not."""
        if 0 in view.shape:
            return None
        if name in self.mapped:
            return tensormap.misfit(view)
        if view.strides == packed_strides(view.shape):
            return None
        step = 1
        for d in reversed(range(len(view.shape))):
            if view.shape[d] > 1 and view.strides[d] != step and (name, d) not in self.strided:
                return f"its stride along dimension {d} is {view.strides[d]}, not {step}"
            step *= view.shape[d]
        return None


@dataclass(frozen=True)
class Copy:
    """One array's buffer, and what has to be copied when."""

    name: str
    reason: str
    array: Any
    buffer: Any
    before: bool
    after: bool
    library: str
    device: int

    def bring(self) -> None:
        if self.before:
            arrays.library(self.library).copy(self.buffer, self.array, self.device)

    def take(self) -> None:
        if self.after:
            arrays.library(self.library).copy(self.array, self.buffer, self.device)

    def __str__(self) -> str:
        return f"`{self.name}` is copied: {self.reason}"


def stage(
    needs: Needs, views: Mapping[str, ArrayView], written: Collection[str], updated: Collection[str]
) -> tuple[dict[str, ArrayView], tuple[Copy, ...]]:
    """The views that the kernel gets, and the copies around it.

    `written` names outputs (their old contents are not read), `updated` those that are read and written.

    Raises:
        BackendError: no memory for a buffer.
    """
    fitting, copies = dict(views), []
    for name, view in views.items():
        reason = needs.misfit(name, view)
        if reason is None:
            continue
        assert view.device is not None
        buffer = _buffer(view, padded=name in needs.mapped)
        fitting[name] = arrays.view(buffer, name)
        writes = name in written or name in updated
        reads = name not in written or name in updated
        copies.append(Copy(name, reason, view.owner, buffer, reads, writes, view.library, view.device))
    return fitting, tuple(copies)


def _buffer(view: ArrayView, padded: bool) -> Any:
    """A packed array of the view's shape; `padded`: with rows that start at multiples of 16 bytes."""
    assert view.device is not None
    library = arrays.library(view.library)
    if not padded:
        return library.empty(view.shape, view.dtype, view.device)
    rows, columns = view.shape
    per = TMA_ALIGNMENT // ITEM_BYTES[view.dtype]
    whole = library.empty((rows, -(-columns // per) * per), view.dtype, view.device)
    return whole[:, :columns]
