"""A call on packed arrays that exist by address only: what it would be compiled to can be said without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coda_lang.arrays import ArrayView, packed_strides
from coda_lang.call import Call, Caller
from coda_lang.data import shapes
from coda_lang.ir.program import Kernel

_ALIGNED = 256  # bytes: what allocators of GPU memory give


def described_array(extents: tuple[int, ...], dtype: str) -> ArrayView:
    return ArrayView(_ALIGNED, extents, packed_strides(extents), dtype, None, None, "numpy")


def described_call(
    kernel: Kernel,
    *,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    inputs: Collection[str] = (),
    outputs: Collection[str] | None = None,
) -> Call[Kernel]:
    """The call that `data.draw` would make arguments for, with the optional `inputs`. Nothing is made.

    Raises:
        ArgumentError: as `data.draw`, and as a call.
    """
    given, binding = shapes(kernel, sizes=sizes, dtypes=dtypes, optional=inputs)
    arguments: dict[str, object] = dict(binding.extents)
    for p in kernel.params:
        if p.name in given:
            arguments[p.name] = described_array(given[p.name].shape, given[p.name].dtype)
        elif p.host and (p.default is None or p.name in inputs):
            arguments[p.name] = 1  # no number of the host's decides what is compiled
    return Caller(kernel).call(arguments, outputs, None)


def title(call: Call[Kernel]) -> str:
    """Lengths and element types: ``M=512 N=512 K=128 T=bf16``."""
    lengths = [f"{n}={x}" for n, x in call.binding.extents.items()]
    return " ".join([*lengths, *(f"{n}={t.name}" for n, t in call.binding.dtypes.items())])
