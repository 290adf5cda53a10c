"""Seeded random arguments for a kernel, made from its signature alone.

Lengths honour every divisibility and every split axis, elements lie in the domains that the signature states. The
command line runs programs on such data, and the property tests check them with it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from coda_lang.binding import Binding, Shape, check_splits
from coda_lang.domains import bound_value, inside
from coda_lang.errors import ArgumentError, did_you_mean
from coda_lang.ir.axes import head_parts
from coda_lang.ir.numerics import STORAGE, Array, from_storage, to_storage
from coda_lang.ir.program import Block, Bound, Definition, Domain, Kernel, Param, Split
from coda_lang.ir.show import show_domain
from coda_lang.ir.types import DTYPES, Dim, DType

ROWS, COLS, CONTRACTED, OTHER, HEAD = 256, 512, 128, 128, 64
DEFAULT_TILE = (128, 256)
LARGEST = 2**40  # elements of one array
_SPREAD = 100  # how many integers a half-open domain, or none, is drawn from


@dataclass(frozen=True)
class Drawn:
    """Arguments of one call: arrays and scalars, and the lengths of axes that no array's shape fixes.

    ``sizes`` has every axis, ``dtypes`` every dtype parameter, ``random`` the inputs that were drawn.
    """

    arguments: dict[str, Any]
    sizes: dict[str, int]
    dtypes: dict[str, str]
    random: tuple[str, ...]


def draw(
    kernel: Definition,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    tile: tuple[int, int] = DEFAULT_TILE,
    progress: Callable[[int, int], None] | None = None,
) -> Drawn:
    """Random arguments for a call of `kernel`. Each input depends on `seed`, its name and its shape only.

    Args:
        sizes: lengths of some axes; the others get small ones that fit.
        dtypes: element types of dtype parameters; else those of `given` arrays, else the first choice.
        given: arrays and scalars that are used as they are.
        optional: inputs with a default that are drawn too; the others are left out.
        tile: rows and columns of a tile, for the number of partials that a reduce takes.
        progress: called with the elements drawn and their number.

    Raises:
        ArgumentError: a name is unknown, an element type is no choice, or a domain has no elements.
    """
    given, optional = dict(given or {}), frozenset(optional)
    binding = _bound(kernel, sizes or {}, dtypes or {}, given, optional, tile)
    lengths = binding.extents
    wanted = [p for p in kernel.params if p.name not in given and (p.default is None or p.name in optional)]
    scalars = {p.name: given.get(p.name, p.default) for p in kernel.params if p.host}
    scalars = {n: x for n, x in scalars.items() if x is not None}
    counts = {p.name: _count(kernel, p, binding) for p in wanted}
    done, total = 0, sum(counts.values())
    arguments = dict(given)
    for p in sorted(wanted, key=lambda p: not p.host):  # a domain may name a scalar
        x = _elements(kernel, p, binding, scalars, np.random.default_rng([seed, zlib.crc32(p.name.encode())]))
        arguments[p.name] = x.item() if p.host else x
        if p.host:
            scalars[p.name] = arguments[p.name]
        done += counts[p.name]
        if progress is not None:
            progress(done, total)
    arguments = {p.name: arguments[p.name] for p in kernel.params if p.name in arguments}
    fixed = _fixed_axes(kernel, arguments)
    arguments |= {n: length for n, length in lengths.items() if n in (sizes or {}) or n not in fixed}
    types = {n: t.name for n, t in binding.dtypes.items()}
    return Drawn(arguments, lengths, types, tuple(p.name for p in kernel.params if p in wanted))


def shapes(
    kernel: Definition,
    *,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    optional: Collection[str] = (),
    tile: tuple[int, int] = DEFAULT_TILE,
) -> tuple[dict[str, Shape], Binding]:
    """The arrays that `draw` would make, by name, and the lengths and element types that they have. Nothing is made.

    Raises:
        ArgumentError: as `draw`.
    """
    binding = _bound(kernel, sizes or {}, dtypes or {}, {}, optional, tile)
    wanted = [p for p in kernel.params if not p.host and (p.default is None or p.name in optional)]
    return {p.name: Shape(_shape(kernel, p, binding), binding.dtype(p).name) for p in wanted}, binding


def _bound(
    kernel: Definition,
    sizes: Mapping[str, int],
    dtypes: Mapping[str, str],
    given: Mapping[str, Any],
    optional: Collection[str],
    tile: tuple[int, int],
) -> Binding:
    """A length for every axis and a type for every dtype parameter."""
    _known(kernel, "axis", sizes, kernel.axes)
    _known(kernel, "dtype parameter", dtypes, [p.name for p in kernel.dtypes])
    _known(kernel, "input", {*given, *optional}, [p.name for p in kernel.params])
    lengths = choose_sizes(kernel, sizes, {n: np.shape(x) for n, x in given.items()})
    types = {n: DTYPES[t] for n, t in _choose_dtypes(kernel, dtypes, given).items()}
    return Binding(kernel, lengths, _opaque(kernel, lengths, given, tile), types)


def _known(kernel: Definition, what: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            help = did_you_mean(name, known) or (f"there are {', '.join(known)}" if known else "there are none")
            raise ArgumentError(f"{kernel.name}: no {what} `{name}`: {help}")


# -- lengths -----------------------------------------------------------------------------------------------------------


def choose_sizes(
    kernel: Definition, sizes: Mapping[str, int] | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, int]:
    """A length for every axis: those in `sizes`, those that input `shapes` fix, and small ones that fit for the others.

    What the caller fixed is not corrected; binding the call says what is wrong with it. Raises ArgumentError for a
    length that is none.
    """
    for name, length in (sizes or {}).items():
        if length < 0:
            raise ArgumentError(f"{kernel.name}: axis `{name}` is a length, got {length}")
    known = {**_from_shapes(kernel, shapes or {}), **(sizes or {})}
    _propagate(kernel, known)
    check_splits(kernel, known)
    factors = _factors(kernel)
    wanted = {n: _default_length(kernel, n) for n in kernel.axes}
    for dim, least in _least_lengths(kernel):
        wanted[dim] = max(wanted[dim], least)
    pending = _factors_first(kernel)
    while pending:
        _propagate(kernel, known)
        axis = pending.pop(0)
        if axis in known:
            continue
        split = next((s for s in kernel.splits if axis in (s.inner.axis, s.outer.axis) and s.axis in known), None)
        if split is not None:  # both factors are free: the propagation would have found a single one
            known[axis] = _divisor(known[split.axis], factors, split, axis)
        else:
            step = _step(kernel, axis, known, factors)
            known[axis] = max(1, -(-_goal(kernel, axis, known, wanted) // step)) * step
    _propagate(kernel, known)
    return {n: known[n] for n in kernel.axes}


def _from_shapes(kernel: Definition, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    known: dict[str, int] = {}
    for p in kernel.params:
        for dim, length in zip(p.dims, shapes.get(p.name, ()), strict=False):
            axis = Fraction(length) / dim.coef if dim.coef else Fraction(0)
            if dim.axis is not None and not dim.tiled and axis.denominator == 1:
                known.setdefault(dim.axis, int(axis))
    return known


def _extents(kernel: Definition) -> Iterator[Dim]:
    for p in kernel.params:
        yield from p.dims
    for o in kernel.outputs:
        yield from o.dims
    for value in kernel.values if isinstance(kernel, Kernel) else ():
        yield from value.type.dims
        if isinstance(value.attr, Dim):
            yield value.attr
    yield from (dim for dim, _ in head_parts(kernel)) if isinstance(kernel, Kernel) else ()
    for tensor in kernel.tensors if isinstance(kernel, Block) else ():
        yield from tensor.dims
    for split in kernel.splits:
        yield from (split.outer, split.inner)


def _factors(kernel: Definition) -> dict[str, int]:
    """What each axis must be a multiple of, so that every extent is whole."""
    factors = dict.fromkeys(kernel.axes, 1)
    for dim in _extents(kernel):
        if dim.axis is not None and not dim.tiled:
            factors[dim.axis] = math.lcm(factors[dim.axis], dim.coef.denominator)
    return factors


def _default_length(kernel: Definition, axis: str) -> int:
    product = kernel.product if isinstance(kernel, Kernel) else None
    if product is not None and axis == product.contracted.axis:
        return CONTRACTED
    if any(axis == s.inner.axis for s in kernel.splits):
        return HEAD
    if not isinstance(kernel, Kernel) or kernel.rows is None or kernel.cols is None:
        return ROWS if axis == kernel.axes[0] else COLS
    return {kernel.cols.axis: COLS, kernel.rows.axis: ROWS}.get(axis, OTHER)


def _least_lengths(kernel: Definition) -> Iterator[tuple[str, int]]:
    """Lengths below which a domain such as `in 10..N` would be empty."""
    for p in kernel.params:
        if p.domain is None or p.domain.high is None or p.domain.low is None:
            continue
        low, high = p.domain.low, p.domain.high
        if low.dim is None and high.dim is not None and high.dim.axis is not None and not high.dim.tiled:
            yield high.dim.axis, math.ceil(Fraction(low.offset + 1 - high.offset) / high.dim.coef)


def _factors_first(kernel: Definition) -> list[str]:
    """Axes in the order in which they are chosen: the factors of a split before the whole, heads' widths first."""
    order: list[str] = []
    for split in reversed(kernel.splits):
        order += [d.axis for d in (split.inner, split.outer) if d.axis is not None]
    return list(dict.fromkeys([*order, *kernel.axes]))


def _propagate(kernel: Definition, known: dict[str, int]) -> None:
    """N = H * D: any two fix the third."""
    for _ in kernel.splits:
        for s in kernel.splits:
            whole, outer, inner = known.get(s.axis), _length(s.outer, known), _length(s.inner, known)
            if whole is None and outer is not None and inner is not None:
                known[s.axis] = outer * inner
            elif whole is not None and inner is None and outer and s.inner.axis is not None and whole % outer == 0:
                known[s.inner.axis] = whole // outer
            elif whole is not None and outer is None and inner and s.outer.axis is not None and whole % inner == 0:
                known[s.outer.axis] = whole // inner


def _length(dim: Dim, known: Mapping[str, int]) -> int | None:
    return int(dim.coef) if dim.axis is None else known.get(dim.axis)


def _divisor(whole: int, factors: Mapping[str, int], split: Split, axis: str) -> int:
    """A length for one factor of `whole`, near HEAD for the inner one, that leaves a good one for the other."""
    other = split.outer if axis == split.inner.axis else split.inner
    step, rest = factors[axis], factors[other.axis] if other.axis is not None else 1
    fits = [d for d in range(step, min(whole, 4096) + 1, step) if whole % d == 0 and whole // d % rest == 0]
    return max((d for d in fits if d <= HEAD), default=fits[0] if fits else step)


def _step(kernel: Definition, axis: str, known: Mapping[str, int], factors: Mapping[str, int]) -> int:
    """What a free axis must be a multiple of; the last factor of a split also makes the whole divisible."""
    step = factors[axis]
    for s in kernel.splits:
        other = s.inner if axis == s.outer.axis else s.outer if axis == s.inner.axis else None
        length = _length(other, known) if other is not None else None
        if length:
            step = math.lcm(step, factors[s.axis] // math.gcd(factors[s.axis], length))
    return step


def _goal(kernel: Definition, axis: str, known: Mapping[str, int], wanted: Mapping[str, int]) -> int:
    """The length to aim at: as many heads as make the whole's usual length."""
    for s in kernel.splits:
        inner = _length(s.inner, known)
        if axis == s.outer.axis and inner:
            return -(-wanted[s.axis] // inner)
    return wanted[axis]


def _opaque(
    kernel: Definition, lengths: Mapping[str, int], given: Mapping[str, Any], tile: tuple[int, int]
) -> dict[Dim, int]:
    """How many partials each input of a reduce has along tiles(X)."""
    found: dict[Dim, int] = {}
    for p in kernel.params:
        shape = np.shape(given[p.name]) if p.name in given else ()
        for i, dim in enumerate(p.dims):
            if dim.tiled and dim.axis is not None:
                along = tile[0 if i == 0 and len(p.dims) > 1 else 1]
                found[dim] = shape[i] if i < len(shape) else max(1, -(-lengths[dim.axis] // along))
    return found


def _fixed_axes(kernel: Definition, arguments: Mapping[str, Any]) -> set[str]:
    known = _from_shapes(kernel, {n: np.shape(x) for n, x in arguments.items()})
    _propagate(kernel, known)
    return set(known)


# -- elements ----------------------------------------------------------------------------------------------------------


def _choose_dtypes(kernel: Definition, dtypes: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    chosen = {}
    for p in kernel.dtypes:
        choices = [c.name for c in p.choices]
        name = dtypes.get(p.name)
        if name is not None and name not in choices:
            raise ArgumentError(f"{kernel.name}: {p.name} is {' or '.join(choices)}, got {name}")
        if name is None:
            theirs = [getattr(given.get(q.name), "dtype", None) for q in kernel.params if q.dtype == p.name]
            name = next((c for c in choices if STORAGE[c] in theirs), choices[0])
        chosen[p.name] = name
    return chosen


def _count(kernel: Definition, p: Param, binding: Binding) -> int:
    shape = _shape(kernel, p, binding)
    count = math.prod(shape)
    if count > LARGEST:
        raise ArgumentError(f"{kernel.name}: `{p.name}` would have {count} elements: choose smaller axes")
    return count


def _shape(kernel: Definition, p: Param, binding: Binding) -> tuple[int, ...]:
    for dim in p.dims:
        if dim.axis is not None and not dim.tiled and (dim.coef * binding.extents[dim.axis]).denominator != 1:
            length, divisor = binding.extents[dim.axis], dim.coef.denominator
            rule = "even" if divisor == 2 else f"a multiple of {divisor}"
            text = f"{dim.axis} must be {rule}, got {length} (`{p.name}` has extent {dim})"
            near = length - length % divisor
            raise ArgumentError(f"{kernel.name}: {text}; the nearest legal values are {near} and {near + divisor}")
    return binding.shape(p)


def _elements(
    kernel: Definition, p: Param, binding: Binding, scalars: Mapping[str, Any], rng: np.random.Generator
) -> Array:
    dtype, shape = binding.dtype(p), _shape(kernel, p, binding)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    domain = p.domain or Domain()
    low, high = (None if b is None else bound_value(b, binding) for b in (domain.low, domain.high))
    if dtype.kind == "int":
        x = _integers(domain, low, high, dtype, shape, rng)
    else:
        x = _floats(domain, low, high, shape, rng)
        contracted = _weights(kernel).get(p.name) if p.domain is None else None
        if contracted is not None:
            x *= np.float32(max(1, binding.length(contracted)) ** -0.5)  # the product is then near 1
    other = scalars.get(domain.other) if domain.other is not None else None
    if other is not None:
        x = np.where(rng.random(shape) < 0.125, np.asarray(other, x.dtype), x)
    with np.errstate(all="ignore"):
        stored = to_storage(x, dtype.name) if dtype.kind == "float" else x.astype(STORAGE[dtype.name])
    if p.domain is not None and stored.size:
        stored = _held_inside(kernel, p, np.asarray(stored), dtype, binding, scalars)
    return np.asarray(stored)


def _weights(definition: Definition) -> dict[str, Dim]:
    """The second operands of products, and the extent that each is contracted over."""
    if isinstance(definition, Kernel):
        return {} if definition.product is None else {definition.product.b: definition.product.contracted}
    found: dict[str, Dim] = {}
    for step in definition.steps if isinstance(definition, Block) else ():
        if isinstance(step.callee, Kernel) and step.callee.product is not None and step.callee.product.a_transposed:
            continue  # a weight's gradient: its operands are activations
        given, axes = dict(step.tensors), dict(step.axes)
        for name, dim in _weights(step.callee).items():
            if name in given and dim.axis in axes:
                found[given[name]] = axes[dim.axis].scaled(dim.coef)
    return found


def _integers(
    domain: Domain, low: Any, high: Any, dtype: DType, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    info = np.iinfo(STORAGE[dtype.name])
    if low is not None:
        low = math.floor(low) + 1 if domain.low_strict else math.ceil(low)
    if high is not None:
        high = math.ceil(high) if domain.high_strict else math.floor(high) + 1
    if low is None:
        low = 0 if high is None else high - _SPREAD
    if high is None:
        high = low + _SPREAD
    low, high = max(low, info.min), min(high, info.max + 1)
    return np.asarray(
        rng.integers(low, high, shape) if low < high else np.full(shape, np.clip(low, info.min, info.max))
    )


def _floats(domain: Domain, low: Any, high: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normal without a domain, log-normal or half-normal beyond one bound, uniform between two."""
    if low is not None and high is not None:
        return np.asarray(low + (high - low) * rng.random(shape), np.float32)
    x = rng.standard_normal(shape, np.float32)
    if low is None and high is None:
        return x
    x = np.exp(0.5 * x) if domain.low_strict or (high is not None and domain.high_strict) else np.abs(x)
    return np.asarray(low + x if low is not None else high - x, np.float32)


def _held_inside(
    kernel: Definition, p: Param, x: Array, dtype: DType, binding: Binding, scalars: Mapping[str, Any]
) -> Array:
    """Elements that rounding carried over a bound, replaced by one that is inside."""
    assert p.domain is not None
    wide = np.int64 if dtype.kind == "int" else np.float64
    ok = inside(p.domain, from_storage(x, wide), binding, scalars)
    if ok.all():
        return x
    for candidate in _candidates(p.domain, dtype, binding, scalars):
        if inside(p.domain, from_storage(candidate, wide), binding, scalars).all():
            return np.where(ok, x, candidate)
    raise ArgumentError(f"{kernel.name}: no {dtype} lies in the domain of `{p.name}`, {show_domain(p.domain)}")


def _candidates(domain: Domain, dtype: DType, binding: Binding, scalars: Mapping[str, Any]) -> Iterator[Array]:
    storage = STORAGE[dtype.name]
    ends = [bound_value(b, binding) for b in (domain.low, domain.high) if isinstance(b, Bound)]
    numbers = [*ends, sum(ends) / len(ends)] if dtype.kind == "float" else ends
    with np.errstate(all="ignore"):
        for number in numbers:
            near = np.asarray(number, np.float64).astype(storage)
            yield near
            if dtype.kind == "float":
                yield from (np.asarray(np.nextafter(near, storage.type(way))) for way in (-np.inf, np.inf))
        if domain.other is not None and domain.other in scalars:
            yield np.asarray(scalars[domain.other]).astype(storage)
