"""The parameter block of a launch: one C struct, filled from the arguments of a call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass import tensormap
from coda_lang.backend_cutlass.abi import Emitted, Extent, Field, Pointer, Scalar, Stride, TensorMap
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.errors import ArgumentError
from coda_lang.ir.types import Dim

Number = float | int | bool

_ALIGNMENT = 64  # of a TMA descriptor in memory, and so of the block
_FORMATS = {"void*": struct.Struct("<Q"), "int64_t": struct.Struct("<q"), "int32_t": struct.Struct("<i")}
_FLOAT = struct.Struct("<f")
_MAX_FLOAT = 3.4028235677973366e38  # from here on (2^128 − 2^103) a number rounds to an infinity of f32


class Block:
    """A block's memory, aligned for descriptors, and the argument list that hands it to a launch."""

    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size + _ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.address = start + -start % _ALIGNMENT
        self.size = size
        self.bytes = (ctypes.c_char * size).from_buffer(self._memory, self.address - start)
        self._arguments = (ctypes.c_void_p * 1)(self.address)
        self.arguments = ctypes.addressof(self._arguments)

    def copy(self) -> Block:
        other = Block(self.size)
        ctypes.memmove(other.address, self.address, self.size)
        return other


@dataclass(frozen=True)
class Addresses:
    """Where a block holds what changes from call to call: (offset, tensor) of plain pointers and of descriptors."""

    pointers: tuple[tuple[int, str], ...]
    maps: tuple[tuple[int, str], ...]

    def write(self, block: Block, addresses: Mapping[str, int], cuda: Driver) -> None:
        """Points a block that was filled for arrays of the same shapes and strides at those at these addresses."""
        pack = _FORMATS["void*"].pack_into
        for offset, tensor in self.pointers:
            pack(block.bytes, offset, addresses[tensor])
        for offset, tensor in self.maps:
            cuda.replace_address(block.address + offset, addresses[tensor])


def fill(
    emitted: Emitted,
    views: Mapping[str, ArrayView],
    scalars: Mapping[str, Number],
    length: Callable[[Dim], int],
    cuda: Driver,
) -> tuple[Block, Addresses]:
    """The block for a call's arguments. Arrays with a descriptor must fit (`tensormap.misfit`).

    Raises:
        ArgumentError: a number does not fit its field.
    """
    block = Block(emitted.params_bytes)
    pointers, maps = [], []
    for field in emitted.fields:
        source = field.source
        if isinstance(source, TensorMap):
            view = views[source.tensor]
            if 0 in view.shape:
                continue  # stays zero: the kernel does not touch it
            e = tensormap.encoding(view, source)
            cuda.encode_tiled(
                block.address + field.offset, e.data_type, view.pointer, e.dims, e.strides, e.box, e.swizzle
            )
            maps.append((field.offset, source.tensor))
        elif isinstance(source, Pointer):
            _FORMATS["void*"].pack_into(block.bytes, field.offset, views[source.tensor].pointer)
            pointers.append((field.offset, source.tensor))
        else:
            _pack(block, field, _number(source, views, scalars, length))
    return block, Addresses(tuple(pointers), tuple(maps))


def _number(
    source: Stride | Scalar | Extent,
    views: Mapping[str, ArrayView],
    scalars: Mapping[str, Number],
    length: Callable[[Dim], int],
) -> Number:
    match source:
        case Stride(tensor, dimension):
            return views[tensor].strides[dimension]
        case Scalar(param, _):
            return scalars[param]
        case Extent(dim):
            return length(dim)


def _pack(block: Block, field: Field, number: Number) -> None:
    if field.ctype == "float":
        value = float(number)
        if abs(value) >= _MAX_FLOAT:  # `struct` refuses what rounds to infinity
            value = float("inf") if value > 0 else float("-inf")
        _FLOAT.pack_into(block.bytes, field.offset, value)
        return
    try:
        _FORMATS[field.ctype].pack_into(block.bytes, field.offset, int(number))
    except struct.error:
        bits = 32 if field.ctype == "int32_t" else 64
        raise ArgumentError(f"{_what(field)} is {number}, which does not fit {bits} bits") from None


def _what(field: Field) -> str:
    match field.source:
        case Scalar(param, _):
            return f"`{param}`"
        case Extent(dim):
            return f"the extent {dim}"
        case Stride(tensor, dimension):
            return f"the stride of dimension {dimension} of `{tensor}`"
    return field.name
