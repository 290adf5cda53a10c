"""Whether two runs of one call agree: to the bit, or as closely as sums in another order and one rounding allow.

Runs with different tiles have different numbers of partials; these are combined first. The comparison of bits is made
on the device; only outputs that differ come to the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coda_lang import arrays
from coda_lang.binding import Binding
from coda_lang.ir.numerics import Array
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel

# What a stored value may differ by, relative to itself: two units in the last place of its format.
_UNITS = {"f32": 2.0**-22, "f16": 2.0**-9, "bf16": 2.0**-6, "f8e4m3": 2.0**-2, "f8e5m2": 2.0**-1}
# And relative to the largest of a typical row: f32 sums of thousands of terms in another order, carried through maps.
_SUMS = 2.0**-12


def disagreement(binding: Binding, reference: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """None if two runs' outputs agree; else which one does not, and by how much. Partials are combined over tiles."""
    kernel = binding.kernel
    for name, x in got.items():
        target = kernel.target(name)
        if not any(d.tiled for d in target.dims) and same_bits(x, reference[name]):
            continue
        ours, theirs = (combine(kernel, name, _on_host(binding, r, name)) for r in (got, reference))
        found = _difference(ours, theirs, binding.dtype(target).name)
        if found is not None:
            return f"`{name}` {found}"
    return None


def _on_host(binding: Binding, results: Mapping[str, Any], name: str) -> dict[str, Array]:
    """The output, and what it has to be combined with: the count and mean of its tiles for their M2."""
    kernel = binding.kernel
    names = {name, *_statistics(kernel, name).values()}
    types = {n: binding.dtype(kernel.target(n)).name for n in names}
    return {n: arrays.to_numpy(arrays.view(results[n], n, types[n]), n) for n in names}


def _statistics(kernel: Kernel, name: str) -> dict[str, str]:
    """The outputs that hold the parts of the same statistic: by part."""
    store = next(s for s in kernel.stores if s.target == name)
    value = kernel.values[store.value]
    if value.op != "tile_welford":
        return {}
    found = {}
    for other in kernel.stores:
        candidate = kernel.values[other.value]
        if candidate.op == "tile_welford" and candidate.args == value.args and isinstance(candidate.attr, tuple):
            found[candidate.attr[1]] = other.target
    return found


def combine(kernel: Kernel, name: str, results: Mapping[str, Array]) -> Array | None:
    """An output in f64, its partials combined over the tiles. None where what that takes was not asked for."""
    target = kernel.target(name)
    x = results[name].astype(np.float64) if results[name].dtype.kind not in "iub" else results[name]
    axis = next((i for i, d in enumerate(target.dims) if d.tiled), None)
    if axis is None:
        return x
    value = kernel.values[next(s for s in kernel.stores if s.target == name).value]
    if value.op == "tile_welford":
        return _welford(kernel, name, results, axis)
    return over_tiles(value.op, x, axis)


def over_tiles(op: str, x: Array, axis: int) -> Array:
    """The whole's value of a tile reduction, from those of its tiles."""
    with np.errstate(all="ignore"):
        if op == "tile_sum":
            return np.asarray(x.sum(axis))
        if op in ("tile_max", "tile_absmax"):
            return np.asarray(x.max(axis, initial=OPS[op].identity or 0.0))
        assert op == "tile_logsumexp", op
        return np.asarray(np.logaddexp.reduce(x, axis=axis))


def _welford(kernel: Kernel, name: str, results: Mapping[str, Array], axis: int) -> Array | None:
    names = _statistics(kernel, name)
    part = next(p for p, n in names.items() if n == name)
    parts = {p: results[n].astype(np.float64) for p, n in names.items()}
    if part == "count":
        return np.asarray(parts["count"].sum(axis))
    if "count" not in parts or "mean" not in parts:
        return None
    count = parts["count"].sum(axis)
    mean = (parts["count"] * parts["mean"]).sum(axis) / count
    if part == "mean":
        return np.asarray(mean)
    off = parts["mean"] - np.expand_dims(mean, axis)
    return np.asarray((parts["m2"] + parts["count"] * off * off).sum(axis))


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays of one library and type hold the same bits, compared where they are."""
    if hasattr(x, "data_ptr"):
        import torch

        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        return bool(torch.equal(x.contiguous().view(bits), y.contiguous().view(bits)))
    a, b = (arrays.to_numpy(x), arrays.to_numpy(y)) if not hasattr(x, "get") else (x, y)
    bits_ = f"u{a.dtype.itemsize}"
    return bool(a.shape == b.shape and (a.view(bits_) == b.view(bits_)).all())


def _difference(x: Array | None, y: Array | None, dtype: str) -> str | None:
    if x is None or y is None:
        return None
    if x.shape != y.shape:
        return f"has shape {list(x.shape)}, not {list(y.shape)}"
    if x.dtype.kind in "iub":
        wrong = np.argwhere(x != y)
        return None if not len(wrong) else f"differs in {len(wrong)} of {x.size} elements, first at {_place(wrong)}"
    with np.errstate(all="ignore"):
        finite = np.isfinite(y)
        scale = float(np.sqrt(np.mean(np.square(y[finite])))) if finite.any() else 0.0
        allowed = _UNITS[dtype] * np.abs(y) + _SUMS * scale
        fine = np.where(finite, np.abs(x - y) <= allowed, (x == y) | (np.isnan(x) & np.isnan(y)))
    wrong = np.argwhere(~fine)
    if not len(wrong):
        return None
    at = tuple(wrong[0])
    return f"differs in {len(wrong)} of {x.size} elements, first at {_place(wrong)}: {x[at]:.6g}, not {y[at]:.6g}"


def _place(wrong: Array) -> list[int]:
    return [int(i) for i in wrong[0]]
