"""What a generated kernel and its launcher agree on: the parameter block, its sources, and the launch shape.

The emitter makes an `Emitted` from a specialised kernel, a schedule and the element types; the compiler turns
its source into a cubin; the launcher fills the parameter block from the arguments of a call. Nothing else passes
between them, so each can be tested alone. The block is one plain C struct, passed by value as a `__grid_constant__`
argument; `Field.offset` is checked by a `static_assert(offsetof(…))` in the generated source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Literal

from coda_lang.ir.types import Dim, DType

# The options that generated sources rely on; the compiler adds the architecture, the include folders (csrc/ first,
# then CUTLASS, the CUDA runtime and cccl) and whatever it wants reported.
#   -fmad=false: a·b + c is never fused, so that arithmetic is equal to the bit. NDEBUG: an assert is an extern
#   call, around which ptxas serialises wgmma. default-device: CuTe's constexpr functions carry no __device__.
NVRTC_OPTIONS = (
    "-std=c++17",
    "-default-device",
    "-DNDEBUG",
    "-fmad=false",
    "-w",
)
ARCHITECTURE = "sm_90a"

# TMA reads and writes rows whose address and stride are multiples of this many bytes, and a vector of floats along the
# columns is read in runs if it is such a row. Other tensors go to `emit(direct=…)`, which moves them by guarded loads
# and stores, one element at a time. The operands of the product have no such form.
TMA_ALIGNMENT = 16


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor (128 bytes, 64-aligned) that the host encodes for a two-dimensional tensor of the call.

    Rank 2, element strides 1, L2 promotion 128 bytes, no fill but zero. The box is in elements, innermost extent
    first; `swizzle` is the shared-memory swizzle in bytes (0, 32, 64, 128). The tensor is described as (inner, outer)
    in its own memory order, inner contiguous. The map of an empty tensor is left zero: the kernel does not touch it.

    With a `run` above 1 the rows of the box come in another order: row 8·j + 2·q + e of each 8·run of them (j < run,
    q < 4, e < 2) is row 2·run·q + 2·j + e in memory, so that wgmma's layout gives a thread neighbouring columns. Such
    a descriptor has rank 5, and 8·run divides the number of rows.

    With `end` the box has only the rows of the last box that there are, rounded up to a multiple of 8.
    """

    tensor: str
    box: tuple[int, int]
    swizzle: int
    run: int = 1
    end: bool = False


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
    """A host scalar input: f32 as float, i32 and i64 as themselves, bool as an int32_t."""

    param: str
    dtype: DType


@dataclass(frozen=True)
class Extent:
    """The length of an extent at the call (i32, or i64 if so declared); ``tiles(X)`` included."""

    dim: Dim


Source = TensorMap | Pointer | Stride | Scalar | Extent
CType = Literal["TensorMap", "void*", "int64_t", "int32_t", "float"]


@dataclass(frozen=True)
class Field:
    name: str
    ctype: CType
    offset: int
    source: Source


@dataclass(frozen=True)
class Emitted:
    """One translation unit and how to launch it.

    `blocks` lists (extent, elements of it in one block): the launch needs the product of the rounded-up quotients
    (see `grid`). A `persistent` kernel walks them with as many clusters as fit the device. Any extent 0 among the
    outputs: nothing is launched.
    """

    source: str  # the CUDA translation unit
    entry: str  # the extern "C" kernel in it; its one argument is the block
    fields: tuple[Field, ...]
    params_bytes: int  # a multiple of 64
    threads: int
    shared_bytes: int  # dynamic shared memory; more than 48 KiB needs the function's attribute raised
    blocks: tuple[tuple[Dim, int], ...]
    persistent: bool
    cluster: tuple[int, int]  # rows × columns of blocks; the kernel carries __cluster_dims__
    tile: tuple[int, int] | None  # the accumulator's tile, rows × columns: fixes tiles(X); None in a reduce
    lines: dict[int, int]  # 1-based line of `source` -> offset in the .coda text of what it comes from
    direct: frozenset[str] = frozenset()  # tensors moved without TMA: no alignment is assumed of them
    cut: bool = False  # heads may end anywhere, not only where a part of a tile does
    segments: tuple[tuple[Dim, int, int], ...] = ()  # (extent, k, tile): k divides it, it divides tile; see `misfit`
    early: bool = False  # the kernel itself waits for the grids ahead of it: it may be started before they end
    nests: tuple[tuple[tuple[Dim, ...], int], ...] = ()  # a reduce's loops inside loops: extents, outermost first, and
    # the threads that share the first


STEPS = 10**7  # 9 million of them, each a whole expression, took 20 s on an H200; see `steps`


def grid(emitted: Emitted, length: Callable[[Dim], int], clusters: int) -> tuple[int, int, int]:
    """The launch grid, in blocks. `length` gives the extents of the call; `clusters` run at once on the device."""
    if not emitted.persistent:
        return prod(-(-length(dim) // per) for dim, per in emitted.blocks), 1, 1
    (rows, tile_m), (cols, tile_n) = emitted.blocks
    m, n = emitted.cluster
    tiles = -(-length(rows) // (tile_m * m)) * -(-length(cols) // (tile_n * n))
    return min(tiles, max(1, clusters)) * m, n, 1


def steps(emitted: Emitted, length: Callable[[Dim], int]) -> int:
    """How often one thread of a reduce goes through its loops inside loops to compute one output."""
    return sum(prod(map(length, nest)) // group for nest, group in emitted.nests)


def misfit(emitted: Emitted, length: Callable[[Dim], int]) -> str | None:
    """Why a call's extents do not suit the kernel, as a sentence; None if they do."""
    took = steps(emitted, length)
    if took > STEPS:
        largest, _ = max(emitted.nests, key=lambda nest: prod(map(length, nest[0])))
        loops = " × ".join(f"{dim} = {length(dim)}" for dim in largest)
        return f"reductions inside reductions ({loops}) take {took:.0e} steps of one thread: split them in two reduces"
    for dim, step, tile in emitted.segments:
        extent = length(dim)
        if extent and (extent % step or tile % extent):
            legal = ", ".join(str(d) for d in range(step, tile + 1, step) if tile % d == 0)
            return f"{dim} = {extent} is not one of {legal}: segments of a tile of {tile} columns"
    return None


def output_key(params: Collection[str], name: str) -> str:
    """The name of an output's tensor in fields and in `direct`: its own, marked where an input has the same name."""
    return name + "'" if name in params else name


def ctype_bytes(ctype: CType) -> int:
    return {"TensorMap": 128, "void*": 8, "int64_t": 8, "int32_t": 4, "float": 4}[ctype]


def layout(fields: list[tuple[str, CType, Source]]) -> tuple[tuple[Field, ...], int]:
    """Offsets of a C struct with those members in order, and its size padded to 64 bytes (its alignment)."""
    placed: list[Field] = []
    at = 0
    for name, ctype, source in fields:
        align = min(ctype_bytes(ctype), 64)
        at = -(-at // align) * align
        placed.append(Field(name, ctype, at, source))
        at += ctype_bytes(ctype)
    return tuple(placed), max(64, -(-at // 64) * 64)
