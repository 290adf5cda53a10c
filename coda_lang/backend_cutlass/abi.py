"""What a generated kernel and its launcher agree on: the parameter block, its sources, and the launch shape.

The emitter makes an `Emitted` from a specialised kernel, a schedule and the element types; the compiler turns
its source into a cubin; the launcher fills the parameter block from the arguments of a call. Nothing else passes
between them, so each can be tested alone. The block is one plain C struct, passed by value as a `__grid_constant__`
argument; `Field.offset` is checked by a `static_assert(offsetof(…))` in the generated source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coda_lang.ir.types import Dim, DType


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor (128 bytes, 64-aligned) that the host encodes for a tensor argument of the call.

    The box is in elements, innermost extent first; `swizzle` is the shared-memory swizzle in bytes (0, 32, 64, 128).
    The tensor is described as (inner, outer) with inner contiguous: for a transposed operand the launcher sees the
    array's own memory order.
    """

    tensor: str
    box: tuple[int, int]
    swizzle: int


@dataclass(frozen=True)
class Pointer:
    """The device address of a tensor argument (8 bytes)."""

    tensor: str


@dataclass(frozen=True)
class Stride:
    """The stride of a tensor argument along one of its dimensions, in elements (i64)."""

    tensor: str
    dimension: int


@dataclass(frozen=True)
class Scalar:
    """A host scalar input, in the given element type (f32, i32 or i64)."""

    param: str
    dtype: DType


@dataclass(frozen=True)
class Extent:
    """The length of an extent at the call (i32, or i64 if so declared)."""

    dim: Dim


@dataclass(frozen=True)
class Derived:
    """A number that the launcher computes for the tile scheduler; `what` names it (see `launch.derive`)."""

    what: str


Source = TensorMap | Pointer | Stride | Scalar | Extent | Derived


@dataclass(frozen=True)
class Field:
    name: str
    ctype: Literal["TensorMap", "void*", "int64_t", "int32_t", "uint32_t", "uint64_t", "float"]
    offset: int
    source: Source


@dataclass(frozen=True)
class Emitted:
    source: str  # the CUDA translation unit
    entry: str  # the extern "C" kernel in it
    fields: tuple[Field, ...]
    params_bytes: int
    threads: int
    shared_bytes: int  # dynamic shared memory
    cluster: tuple[int, int]
    tile: tuple[int, int]  # the accumulator's tile, rows × columns: fixes tiles(X)
    lines: dict[int, int]  # line of `source` -> offset of the .coda construct it comes from
