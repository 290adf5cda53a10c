"""Whether two runs of one call agree: as closely as sums in another order and one rounding allow.

Runs with different tiles have different numbers of partials; these are combined first, on the host. All else is
compared where it is, part by part: a schedule may walk K in another order, so that hardly an array is equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coda_lang import arrays
from coda_lang.binding import Binding
from coda_lang.ir.numerics import Array
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel

# What a stored value may differ by, relative to itself: two units in the last place of its format.
_UNITS = {"f32": 2.0**-22, "f16": 2.0**-9, "bf16": 2.0**-6, "f8e4m3": 2.0**-2, "f8e5m2": 2.0**-1}
# And relative to the root mean square: f32 sums of thousands of terms in another order, carried through maps.
_SUMS = 2.0**-12
# Where a value jumps (at a comparison, in a select), a sum in another order may lie on the other side: for this share
# of the elements, here and there. A wrong kernel is wrong in a row, a column or a block of 64 by 64, where no more than
# so many may; and none that is finite in one run only, or was not written.
_JUMPED, _TOGETHER, _BLOCK = 1e-5, 8, 64
_PART = 1 << 22  # elements that are compared at a time


def disagreement(binding: Binding, reference: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """None if two runs' outputs agree; else which one does not, and by how much. Partials are combined over tiles."""
    kernel = binding.kernel
    for name, x in got.items():
        target = kernel.target(name)
        dtype = binding.dtype(target).name
        if any(d.tiled for d in target.dims):
            ours, theirs = (combine(kernel, name, _on_host(binding, r, name)) for r in (got, reference))
        elif same_bits(x, reference[name]):
            continue
        else:
            ours, theirs = (_countable(r[name], name, dtype) for r in (got, reference))
        found = _difference(ours, theirs, dtype)
        if found is not None:
            return f"`{name}` {found}"
    return None


def _countable(x: Any, name: str, dtype: str) -> Any:
    """An array with arithmetic: itself, but for the f8 types in CuPy, which are bytes there and come to the host."""
    if hasattr(x, "data_ptr") or (hasattr(x, "get") and not dtype.startswith("f8")):
        return x
    return arrays.to_numpy(arrays.view(x, name, dtype), name)


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


def _difference(x: Any, y: Any, dtype: str) -> str | None:
    """Of two arrays of one library; None where one was not asked for."""
    if x is None or y is None:
        return None
    if tuple(x.shape) != tuple(y.shape):
        return f"has shape {list(x.shape)}, not {list(y.shape)}"
    size = int(np.prod(x.shape))
    scale = _scale(y) if dtype in _UNITS else 0.0
    wrong, sure, first = 0, False, None
    places: list[int] = []
    for start, ours, theirs in _parts(x, y):
        if dtype in _UNITS:
            missed = ~_fine(ours, theirs, _UNITS[dtype], scale)
            library = _library(ours)
            sure |= bool((missed & (library.isfinite(ours) != library.isfinite(theirs))).any())
        else:
            missed = ours != theirs
            sure |= dtype != "bool" and bool((missed & (ours == -1)).any())  # the bytes that outputs are filled with
        count = int(missed.sum())
        wrong += count
        if count and wrong <= _JUMPED * size:
            places += [start + at for at in _library(missed).where(missed)[0].tolist()]
        if count and first is None:
            at = int((1 * missed).argmax())
            first = start + at, ours[at].item(), theirs[at].item()
    if first is None or (not sure and wrong <= _JUMPED * size and _scattered(places, tuple(x.shape))):
        return None
    at, ours, theirs = first
    place = [int(i) for i in np.unravel_index(at, tuple(x.shape))]
    values = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in (ours, theirs))
    return f"differs in {wrong} of {size} elements, first at {place}: {', not '.join(values)}"


def _scattered(places: list[int], shape: tuple[int, ...]) -> bool:
    """Whether no row, column or block of an array, as a matrix, holds more than a few of its elements."""
    width = shape[-1] if shape else 1
    rows, columns = np.divmod(np.asarray(places), width)
    blocks = rows // _BLOCK * -(-width // _BLOCK) + columns // _BLOCK
    return all(np.unique(x, return_counts=True)[1].max() <= _TOGETHER for x in (rows, columns, blocks))


def _parts(*wholes: Any) -> Iterator[tuple[Any, ...]]:
    """Where each part begins, and the part of each array: floats in f64, all else as it is."""
    flat = [x.reshape(-1) for x in wholes]
    for start in range(0, len(flat[0]), _PART):
        yield start, *(_wide(x[start : start + _PART]) for x in flat)


def _wide(x: Any) -> Any:
    if hasattr(x, "data_ptr"):
        return x.double() if x.is_floating_point() else x
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def _library(x: Any) -> Any:
    """The module that has `isfinite`, `where` and `square` for an array."""
    if hasattr(x, "data_ptr"):
        import torch

        return torch
    if hasattr(x, "get"):
        import cupy

        return cupy
    return np


def _scale(y: Any) -> float:
    """The root mean square of the finite elements; 0 of none."""
    total, count = 0.0, 0
    for _, part in _parts(y):
        library = _library(part)
        finite = library.isfinite(part)
        total += float(library.square(part[finite]).sum())
        count += int(finite.sum())
    return (total / count) ** 0.5 if count else 0.0


def _fine(x: Any, y: Any, units: float, scale: float) -> Any:
    library = _library(y)
    with np.errstate(all="ignore"):
        near = abs(x - y) <= units * abs(y) + _SUMS * scale
        same = (x == y) | (library.isnan(x) & library.isnan(y))
    return library.where(library.isfinite(y), near, same)
