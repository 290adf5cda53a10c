"""A call of a block as a list of launches: every length known, inner blocks opened up, pieces cut."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from coda_lang.arrays import ITEM_BYTES
from coda_lang.binding import Binding, Shape, bind, host_defaults, host_number
from coda_lang.errors import ArgumentError
from coda_lang.ir import prune
from coda_lang.ir.program import Block, Kernel, Number, Output, Param, Scalar, Step
from coda_lang.ir.types import Dim, DType

ROW_BYTES = 16

Tile = tuple[int, int]


@dataclass(frozen=True)
class Buffer:
    """An array that launches read or write; ``role`` is ``input``, ``output`` or ``temporary``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str

    @property
    def pitch(self) -> int:
        """Elements from one row of a temporary to the next: whole units of 16 bytes, which TMA asks for."""
        per = ROW_BYTES // ITEM_BYTES[self.dtype]
        return -(-self.shape[1] // per) * per if len(self.shape) == 2 else 1

    def laid_out(self, flat: Any) -> Any:
        """A temporary's elements, ends of rows too, as its array."""
        if len(self.shape) != 2:
            return flat.reshape(self.shape)
        return flat.reshape((self.shape[0], self.pitch))[:, : self.shape[1]]

    @property
    def elements(self) -> int:
        """Of a temporary, the ends of its rows too."""
        return self.shape[0] * self.pitch if len(self.shape) == 2 else prod(self.shape)


@dataclass(frozen=True)
class Piece:
    """A buffer by its number, or rows ``first … last`` of it."""

    buffer: int
    first: int
    last: int
    shape: tuple[int, ...]
    dtype: str

    def rows(self, first: int, last: int) -> Piece:
        return replace(self, first=self.first + first, last=self.first + last, shape=(last - first, *self.shape[1:]))


@dataclass(frozen=True)
class Launch:
    """One kernel, map or reduce: its inputs and outputs by name, and what it is told by value."""

    kernel: Kernel
    tensors: dict[str, Piece]
    scalars: dict[str, Number]
    axes: dict[str, int]
    outputs: dict[str, Piece]


@dataclass
class Expansion:
    """``inputs`` and ``outputs`` are the numbers of the block's own arrays by name."""

    buffers: list[Buffer] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)

    def whole(self, i: int) -> Piece:
        buffer = self.buffers[i]
        return Piece(i, 0, buffer.shape[0] if buffer.shape else 1, buffer.shape, buffer.dtype)


# The form of a kernel that takes these inputs and makes these outputs.
Specialised = Callable[[Kernel, frozenset[str], frozenset[str]], Kernel]
# The tile that such a form of a kernel will use on its inputs; the outputs are those that are placed already.
TileOf = Callable[[Kernel, Kernel, Binding, Mapping[str, Piece], Mapping[str, Piece]], Tile]


def begin(block: Block, binding: Binding) -> Expansion:
    """The buffers of a block's own arrays."""
    made = Expansion()
    for p in block.params:
        if not p.host:
            made.inputs[p.name] = _buffer(made, Buffer(p.name, binding.shape(p), binding.dtype(p).name, "input")).buffer
    for o in block.outputs:
        made.outputs[o.name] = _buffer(made, Buffer(o.name, binding.shape(o), binding.dtype(o).name, "output")).buffer
    return made


def expand(
    made: Expansion,
    block: Block,
    binding: Binding,
    scalars: Mapping[str, Number],
    specialised: Specialised,
    tile: TileOf,
) -> Expansion:
    """Adds the launches of a call of a specialised block to what `begin` made.

    Args:
        binding: the lengths and element types of the call.
        scalars: the host scalars, by name; those that were not passed have their defaults.

    Raises:
        ArgumentError: the lengths do not suit a step.
    """
    tensors = {n: made.whole(i) for n, i in made.inputs.items()}
    outputs = {n: made.whole(i) for n, i in made.outputs.items()}
    _Expander(made, specialised, tile).block(block, _Frame(binding, scalars, tensors, outputs))
    return made


@dataclass(frozen=True)
class _Frame:
    """What one call of a block, or one piece of it, knows: its lengths, its numbers, and its arrays by name."""

    binding: Binding
    scalars: Mapping[str, Number]
    tensors: Mapping[str, Piece]
    outputs: Mapping[str, Piece]


@dataclass
class _Expander:
    made: Expansion
    specialised: Specialised
    tile: TileOf

    def block(self, block: Block, frame: _Frame) -> None:
        """All steps, or those of each piece in turn."""
        if block.by is None:
            self._steps(block, frame)
            return
        axis, size = block.by
        length = frame.binding.extents[axis]
        for first in range(0, length, size):
            last = min(first + size, length)

            def part(
                pieces: Mapping[str, Piece], own: Sequence[Param | Output], rows: tuple[int, int] = (first, last)
            ) -> dict[str, Piece]:
                cut = {t.name for t in own if t.dims and t.dims[0].axis == axis}
                return {n: p.rows(*rows) if n in cut else p for n, p in pieces.items()}

            tensors, outputs = part(frame.tensors, block.params), part(frame.outputs, block.outputs)
            binding = replace(frame.binding, extents={**frame.binding.extents, axis: last - first})
            self._steps(block, _Frame(binding, frame.scalars, tensors, outputs))

    def _steps(self, block: Block, frame: _Frame) -> None:
        known = dict(frame.tensors)
        stored = {t: frame.outputs[o] for o, t in block.stores}
        for step in block.steps:
            try:
                known |= self._step(step, replace(frame, tensors=known), stored)
            except ArgumentError as error:
                raise ArgumentError(f"{block.name} ({step.span}): {error}") from None

    def _step(self, step: Step, frame: _Frame, stored: Mapping[str, Piece]) -> dict[str, Piece]:
        """Adds one step's launches; its results by name."""
        binding, callee = frame.binding, step.callee
        tensors = {p: frame.tensors[t] for p, t in step.tensors}
        numbers = {
            n: host_number(callee, callee.param(n), evaluate(x, binding, frame.scalars)) for n, x in step.scalars
        }
        axes = {n: _length(binding, d) for n, d in step.axes}
        shapes = {n: Shape(p.shape, p.dtype) for n, p in tensors.items()}
        asked = frozenset(o for o, _ in step.results)
        passed = frozenset(tensors) | frozenset(numbers)
        names = dict(step.results)
        if isinstance(step.callee, Block):
            callee = prune.specialise(step.callee, passed, asked)
            inner = bind(callee, shapes, axes)
            results = {
                o.name: self._result(names[o.name], stored, inner.shape(o), inner.dtype(o)) for o in callee.outputs
            }
            self.block(callee, _Frame(inner, {**host_defaults(callee), **numbers}, tensors, results))
        else:
            form = self.specialised(step.callee, passed, asked)
            inner = bind(form, shapes, axes)
            placed = {o: stored[t] for o, t in step.results if t in stored}
            tile = self.tile(step.callee, form, inner, tensors, placed)
            results = {
                o.name: self._result(names[o.name], stored, inner.shape(o, tile), inner.dtype(o)) for o in form.outputs
            }
            self.made.launches.append(Launch(step.callee, tensors, numbers, axes, results))
        return {names[o]: piece for o, piece in results.items()}

    def _result(self, name: str, stored: Mapping[str, Piece], shape: tuple[int, ...], dtype: DType) -> Piece:
        """Where a result goes: to the output that it is, or to a new buffer."""
        if name in stored:
            return stored[name]
        return _buffer(self.made, Buffer(name, shape, dtype.name, "temporary"))


def _buffer(made: Expansion, buffer: Buffer) -> Piece:
    made.buffers.append(buffer)
    return made.whole(len(made.buffers) - 1)


def _length(binding: Binding, dim: Dim) -> int:
    """The length of an extent of a piece, which is whole where the axis is not cut."""
    length = dim.coef * (1 if dim.axis is None else binding.extents[dim.axis])
    if length.denominator != 1:
        raise ArgumentError(f"{dim} is no whole number where {dim.axis} is {binding.extents[dim.axis or '']}")
    return int(length)


def evaluate(x: Scalar, binding: Binding, scalars: Mapping[str, Number]) -> Number:
    """A number passed by value: integers are exact, floats f64 until the callee rounds them to f32."""
    args = [evaluate(a, binding, scalars) for a in x.args]
    match x.op:
        case "const":
            assert isinstance(x.attr, (bool, int, float))
            return x.attr
        case "param":
            assert isinstance(x.attr, str)
            return scalars[x.attr]
        case "axis":
            assert isinstance(x.attr, Dim)
            return _length(binding, x.attr)
        case "neg":
            return -args[0]
    if x.op == "div" or any(isinstance(a, float) for a in args):
        args = list(map(_real, args))
    with np.errstate(all="ignore"):
        result: Number = _ARITHMETIC[x.op](*args)
    return float(result) if isinstance(result, np.floating) else result


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def _real(x: Number) -> np.float64:
    """A number in f64, whose arithmetic has infinities and no errors; infinite if it is an int beyond that."""
    try:
        return np.float64(x)
    except OverflowError:
        return np.float64(np.inf if x > 0 else -np.inf)
