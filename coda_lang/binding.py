"""What a call fixes: the length of every axis and the element type of every input.

Both backends bind a call here, before anything is computed or launched, so a wrong call gives the same message on each.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from coda_lang.errors import ArgumentError, did_you_mean
from coda_lang.ir.axes import head_parts
from coda_lang.ir.numerics import STORAGE
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Block, Definition, Kernel, Number, Output, Param, Scalar, dtype_of
from coda_lang.ir.types import DTYPES, Dim, DType

_LONGEST = 2**48  # of an axis: what is longer fits no memory


@dataclass(frozen=True)
class Shape:
    """An argument's shape and element type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass
class Binding:
    """``extents``: axis → length. ``opaque``: a reduce's tiles(X) → length. ``dtypes``: dtype parameter → type."""

    definition: Definition
    extents: dict[str, int] = field(default_factory=dict)
    opaque: dict[Dim, int] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)

    @property
    def kernel(self) -> Kernel:
        """The definition, where it is known not to be a block."""
        assert isinstance(self.definition, Kernel)
        return self.definition

    def dtype(self, target: Param | Output) -> DType:
        return dtype_of(target, self.dtypes)

    def length(self, dim: Dim, tile: tuple[int, int] | None = None) -> int:
        """The length of an extent; tiles(X) of a kernel needs the tile's shape."""
        if dim.tiled:
            if dim in self.opaque:
                return self.opaque[dim]
            assert tile is not None and self.kernel.rows is not None and self.kernel.cols is not None
            along_rows = dim.axis == self.kernel.rows.axis
            whole = self.length(self.kernel.rows if along_rows else self.kernel.cols)
            return -(-whole // tile[0 if along_rows else 1])
        return int(dim.coef * (1 if dim.axis is None else self.extents[dim.axis]))

    def shape(self, target: Param | Output, tile: tuple[int, int] | None = None) -> tuple[int, ...]:
        return tuple(self.length(d, tile) for d in target.dims)


def bind(kernel: Definition, shapes: Mapping[str, Shape], axes: Mapping[str, int]) -> Binding:
    """Solve a call's axes and element types.

    `shapes` holds the tensor arguments that were passed, `axes` the lengths given by name. Raises ArgumentError for a
    wrong rank, element type or length, a length that two arguments disagree on, or one that does not divide as it must.
    """
    binding = Binding(kernel)
    origin: dict[str, str] = {}
    for name, length in axes.items():
        try:
            binding.extents[name] = operator.index(length)
        except TypeError:
            binding.extents[name] = -1
        if isinstance(length, bool) or not 0 <= binding.extents[name] < _LONGEST:
            raise ArgumentError(f"{kernel.name}: axis `{name}` is a length, got {length!r}")
        origin[name] = "the call"
    for param in kernel.params:
        if param.name in shapes:
            _bind_dtype(binding, param, shapes[param.name])
            _bind_shape(binding, origin, param, shapes[param.name])
    _bind_splits(binding, origin)
    _check_lengths(binding, origin, shapes)
    return binding


def _bind_dtype(binding: Binding, param: Param, shape: Shape) -> None:
    kernel, got = binding.definition, shape.dtype
    if isinstance(param.dtype, DType):
        if got != param.dtype.name:
            raise ArgumentError(f"{kernel.name}: `{param.name}` must be {param.dtype}, got {got}")
        return
    choices = next(p.choices for p in kernel.dtypes if p.name == param.dtype)
    bound = binding.dtypes.get(param.dtype)
    if bound is not None and got != bound.name:
        first = next(p.name for p in kernel.params if p.dtype == param.dtype)
        raise ArgumentError(f"{kernel.name}: `{param.name}` must be {bound} like `{first}`, got {got}")
    if got not in {c.name for c in choices}:
        raise ArgumentError(f"{kernel.name}: `{param.name}` must be {' or '.join(map(str, choices))}, got {got}")
    binding.dtypes[param.dtype] = DTYPES[got]


def _bind_shape(binding: Binding, origin: dict[str, str], param: Param, shape: Shape) -> None:
    kernel = binding.definition
    wanted = f"[{', '.join(map(str, param.dims))}]"
    if len(shape.shape) != len(param.dims):
        got = f"{len(shape.shape)} ({_show(shape.shape)})"
        plural = "" if len(param.dims) == 1 else "s"
        text = f"`{param.name}` is {wanted} and must have {len(param.dims)} dimension{plural}, got {got}"
        raise ArgumentError(f"{kernel.name}: {text}")
    before = dict(binding.extents)
    for i, (dim, length) in enumerate(zip(param.dims, shape.shape, strict=True)):
        place = f"dimension {i} of `{param.name}` (shape {_show(shape.shape)})"
        if dim.tiled:
            binding.opaque[dim] = length
            continue
        if dim.axis is None:
            if length != dim.coef:
                raise ArgumentError(f"{kernel.name}: {place} must be {dim}, got {length}")
            continue
        axis = Fraction(length) / dim.coef
        if axis.denominator != 1:
            rule = f"{place} is {dim} and must be a multiple of {dim.coef.numerator}, got {length}"
            raise ArgumentError(f"{kernel.name}: {rule}")
        known = binding.extents.get(dim.axis)
        if known is not None and known != axis:
            expected = dim.coef * known
            shown = f"{expected}" if expected.denominator == 1 else f"{known}·{dim.coef}"
            reason = f"{dim.axis} is {known} by {origin[dim.axis]}"
            turned = f"; `{param.name}` looks transposed" if _fits(param.dims, shape.shape[::-1], before) else ""
            text = f"{place} is {dim} and must be {shown}, got {length}: {reason}{turned}"
            raise ArgumentError(f"{kernel.name}: {text}")
        binding.extents.setdefault(dim.axis, int(axis))
        origin.setdefault(dim.axis, f"`{param.name}`")


def _fits(dims: tuple[Dim, ...], shape: tuple[int, ...], known: Mapping[str, int]) -> bool:
    """Whether a matrix's shape agrees with the lengths that are known, of which there is one for some dimension."""
    pairs = [(d, n, known.get(d.axis) if d.axis is not None else 1) for d, n in zip(dims, shape, strict=True)]
    meets = all(axis is None or d.tiled or d.coef * axis == n for d, n, axis in pairs)
    return len(dims) == 2 and meets and any(d.axis in known for d in dims)


def _bind_splits(binding: Binding, origin: dict[str, str]) -> None:
    """N = H * D: any two fix the third."""
    for split in binding.definition.splits:
        whole = binding.extents.get(split.axis)
        lengths: list[int | None] = [
            int(d.coef) if d.axis is None else binding.extents.get(d.axis) for d in (split.outer, split.inner)
        ]
        outer, inner = lengths
        form = f"{split.axis} = {split.outer} * {split.inner}"
        if whole is None and outer is not None and inner is not None:
            binding.extents[split.axis] = outer * inner
            origin[split.axis] = form
        elif whole is not None and (outer is None) != (inner is None):
            check_splits(binding.definition, binding.extents)
            known = outer if outer is not None else inner
            missing = split.inner if inner is None else split.outer
            assert known is not None and missing.axis is not None
            binding.extents[missing.axis] = whole // known
            origin[missing.axis] = form
        elif whole is not None and outer is not None and inner is not None and outer * inner != whole:
            text = f"{form} does not hold: {whole} is not {outer} * {inner}"
            raise ArgumentError(f"{binding.definition.name}: {text}")


def check_splits(definition: Definition, known: Mapping[str, int]) -> None:
    """Of N = H * D with N and one factor known, N is a multiple of that. Raises ArgumentError."""
    for split in definition.splits:
        whole = known.get(split.axis)
        lengths = [(d, int(d.coef) if d.axis is None else known.get(d.axis)) for d in (split.outer, split.inner)]
        for factor, length in lengths:
            alone = sum(x is None for _, x in lengths) == 1
            if alone and whole is not None and length is not None and (length == 0 or whole % length):
                name = f"{factor} = {length}" if factor.axis is not None else f"{length}"
                text = f"{split.axis} must be a multiple of {name}, got {whole}"
                form = f"{split.axis} = {split.outer} * {split.inner}"
                raise ArgumentError(f"{definition.name}: {text} ({form})")


def _check_lengths(binding: Binding, origin: dict[str, str], shapes: Mapping[str, Shape]) -> None:
    kernel = binding.definition
    for dim, what in _extents_used(kernel, shapes):
        if dim.axis is None and dim.coef.denominator != 1:  # half a head of a constant width
            raise ArgumentError(f"{kernel.name}: {what} has extent {dim}: a head that meets half columns is even")
        if dim.axis is None or dim.tiled:
            continue
        length = binding.extents.get(dim.axis)
        if length is None:
            split = next((s for s in kernel.splits if dim.axis in (s.axis, s.outer.axis, s.inner.axis)), None)
            hint = f" ({split.axis} = {split.outer} * {split.inner})" if split is not None else ""
            text = f"no argument's shape fixes axis {dim.axis}{hint}: pass it by name, `{dim.axis}=…`"
            raise ArgumentError(f"{kernel.name}: {text}")
        part = dim.coef * length
        if part.denominator != 1:
            divisor = dim.coef.denominator
            rule = "even" if divisor == 2 else f"a multiple of {divisor}"
            near = length - length % divisor
            text = f"{dim.axis} must be {rule}, got {length} ({what} has extent {dim})"
            raise ArgumentError(f"{kernel.name}: {text}; the nearest legal values are {near} and {near + divisor}")


def axes_needed(kernel: Definition, passed: Collection[str]) -> set[str]:
    """The axes whose lengths a call with these inputs needs: for tensors, values and outputs, or in arithmetic."""
    return {d.axis for d, _ in _extents_used(kernel, passed) if d.axis is not None and not d.tiled}


def _extents_used(kernel: Definition, passed: Collection[str]) -> Iterator[tuple[Dim, str]]:
    for param in kernel.params:
        if param.name in passed:
            yield from ((d, f"`{param.name}`") for d in param.dims)
    for output in kernel.outputs:
        yield from ((d, f"output `{output.name}`") for d in output.dims)
    if isinstance(kernel, Block):
        for step in kernel.steps:
            dims = [d for _, d in step.axes] + [d for _, x in step.scalars for d in _lengths(x)]
            cut = kernel.by[0] if kernel.by is not None else None  # each piece has a length of its own
            yield from ((d, f"line {step.span.line}") for d in dims if d.axis != cut)
    if isinstance(kernel, Kernel):
        yield from _extents_of_values(kernel)


def _extents_of_values(kernel: Kernel) -> Iterator[tuple[Dim, str]]:
    for value in kernel.values:
        if value.op == "axis":
            yield from ((d, "the body") for d in (value.attr,) if isinstance(d, Dim))
        else:
            what = f"line {value.span.line}" if value.span.end else "the body"
            if value.op not in ("load", "const"):  # an absent input has its number along axes that nothing else fixes
                yield from ((d, what) for d in value.type.dims)
            if OPS[value.op].meaning is None:
                yield from ((d, what) for a in value.args for d in kernel.values[a].type.dims)
    yield from ((d, f"a head in line {span.line}") for d, span in head_parts(kernel))


def _lengths(x: Scalar) -> Iterator[Dim]:
    """The lengths that a number passed by value is made of."""
    if isinstance(x.attr, Dim):
        yield x.attr
    for a in x.args:
        yield from _lengths(a)


def host_number(definition: Definition, p: Param, x: Any) -> Number:
    """A number passed by value: an integer that fits its type, or rounded to f32. Raises ArgumentError."""
    assert isinstance(p.dtype, DType)
    if p.dtype.kind == "int":
        info = np.iinfo(STORAGE[p.dtype.name])
        if isinstance(x, (float, np.floating)) or not info.min <= int(x) <= info.max:
            raise ArgumentError(f"{definition.name}: `{p.name}` is an {p.dtype} integer, got {x!r}")
        return int(x)
    with np.errstate(all="ignore"):
        try:
            return float(np.float32(x))
        except OverflowError:  # an int beyond f64
            return math.inf if x > 0 else -math.inf


def host_defaults(definition: Definition) -> dict[str, Number]:
    """What the host scalars are that a call does not pass."""
    return {
        p.name: host_number(definition, p, p.default) for p in definition.params if p.host and p.default is not None
    }


def check_names(kernel: Definition, given: Mapping[str, object]) -> None:
    """Every argument is an input or an axis, and no input is missing. Raises ArgumentError."""
    names = {p.name for p in kernel.params}
    for name in given:
        if name not in names and name not in kernel.axes:
            help = did_you_mean(name, [*names, *kernel.axes])
            known = help or f"its inputs are {', '.join(p.name for p in kernel.params)}"
            raise ArgumentError(f"{kernel.name}: no argument `{name}`: {known}")
    missing = [p for p in kernel.params if p.name not in given and p.default is None]
    if missing:
        names_ = ", ".join(f"`{p.name}: {show_param(p)}`" for p in missing)
        raise ArgumentError(f"{kernel.name}: missing argument{'s' if len(missing) > 1 else ''} {names_}")


def asked_outputs(kernel: Definition, outputs: object) -> frozenset[str]:
    """The outputs of a call: those named, or all but the optional ones. Raises ArgumentError."""
    if outputs is None:
        return frozenset(o.name for o in kernel.outputs if not o.optional)
    try:
        names = None if isinstance(outputs, str) else list(outputs)  # type: ignore[call-overload]
    except TypeError:
        names = None
    if names is None:
        raise ArgumentError(f"{kernel.name}: `outputs` is a list of output names, got {outputs!r}")
    known = [o.name for o in kernel.outputs]
    for name in names:
        if name not in known:
            help = did_you_mean(str(name), known) or f"its outputs are {', '.join(known) or 'none'}"
            raise ArgumentError(f"{kernel.name}: no output `{name}`: {help}")
    return frozenset(names)


def show_param(param: Param | Output) -> str:
    if isinstance(param, Param) and param.host:
        return str(param.dtype)
    return f"{param.dtype}[{', '.join(map(str, param.dims))}]"


def _show(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
