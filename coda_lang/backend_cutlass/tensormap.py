"""TMA descriptors: whether an array can have one, and the arguments of its encoding."""

from __future__ import annotations

from dataclasses import dataclass

from coda_lang.arrays import ITEM_BYTES, ArrayView
from coda_lang.backend_cutlass.abi import TMA_ALIGNMENT, TensorMap

# CUtensorMapDataType; 8-bit floats travel as bytes.
_DATA_TYPE = {"f8e4m3": 0, "f8e5m2": 0, "bool": 0, "i32": 3, "i64": 5, "f16": 6, "f32": 7, "bf16": 9}
_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
_MAX_EXTENT, _MAX_STRIDE, _MAX_BOX = 2**32, 2**40, 256


@dataclass(frozen=True)
class Encoding:
    """What `cuTensorMapEncodeTiled` is given besides the address; see `Driver.encode_tiled`."""

    data_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def misfit(view: ArrayView) -> str | None:
    """Why TMA cannot address an array of one or two dimensions as it lies in memory, or None if it can.

    The rule (CUDA driver API, cuTensorMapEncodeTiled): elements of a row adjacent, the base address and the
    distance of rows multiples of 16 bytes, the distance positive and below 2^40 bytes, extents at most 2^32. An
    array without elements fits: no descriptor is made for it.
    """
    rows, columns = (1, *view.shape)[-2:]
    if rows == 0 or columns == 0:
        return None
    item = ITEM_BYTES[view.dtype]
    if columns > 1 and view.strides[-1] != 1:
        return f"the elements of a row are {view.strides[-1]} apart, not adjacent"
    if view.pointer % TMA_ALIGNMENT:
        return f"its address is {view.pointer % TMA_ALIGNMENT} bytes past a multiple of {TMA_ALIGNMENT}"
    if rows > 1:
        pitch = view.strides[0] * item
        if pitch <= 0 or pitch >= _MAX_STRIDE:
            return f"its rows are {pitch} bytes apart, outside 1 … 2^40"
        if pitch % TMA_ALIGNMENT:
            legal = -(-view.strides[0] // (TMA_ALIGNMENT // item)) * (TMA_ALIGNMENT // item)
            return (
                f"its rows are {view.strides[0]} elements = {pitch} bytes apart, no multiple of {TMA_ALIGNMENT} bytes "
                f"(nearest larger: {legal} elements)"
            )
    if max(rows, columns) > _MAX_EXTENT:
        return f"an extent of {max(rows, columns)} is above 2^32"
    return None


def encoding(view: ArrayView, source: TensorMap) -> Encoding:
    """The arguments for an array that fits.

    Raises:
        ValueError: the array does not fit, or the box breaks the hardware's rules (the emitter's fault).
    """
    reason = misfit(view)
    if reason is not None:
        raise ValueError(f"{source.tensor}: {reason}")
    rows, columns = view.shape
    item = ITEM_BYTES[view.dtype]
    inner, outer = source.box
    if source.end:
        outer = -(-(rows % outer or outer) // 8) * 8
    if not (0 < inner <= _MAX_BOX and 0 < outer <= _MAX_BOX) or inner * item % TMA_ALIGNMENT:
        raise ValueError(f"{source.tensor}: a box of {inner}x{outer} elements of {item} bytes")
    if source.swizzle and inner * item > source.swizzle:
        raise ValueError(f"{source.tensor}: {inner * item} bytes in a row of a box with swizzle {source.swizzle}")
    # The distance of the rows of a single row may be anything, so it is not the array's that is passed on.
    packed = -(-columns * item // TMA_ALIGNMENT) * TMA_ALIGNMENT
    pitch = view.strides[0] * item if rows > 1 else packed
    dims, strides, box = _rows(rows, outer, pitch, source)
    return Encoding(_DATA_TYPE[view.dtype], (columns, *dims), strides, (inner, *box), _SWIZZLE[source.swizzle])


def _rows(
    rows: int, box: int, pitch: int, source: TensorMap
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Extents, strides and box of the outer dimensions: of the rows, in the order that `TensorMap.run` describes.

    Its strides do not ascend, as cuTensorMapEncodeTiled's text would have them. Drivers ask only that they be multiples
    of 16 bytes below 2^40, and the copies bring what the strides say (tests/gpu runs them).
    """
    run = source.run
    if run == 1:
        return (rows,), (pitch,), (box,)
    if rows % (8 * run) or box % (8 * run):
        raise ValueError(f"{source.tensor}: {rows} rows in boxes of {box} are no multiples of {8 * run}")
    if 8 * run * pitch >= _MAX_STRIDE:
        raise ValueError(f"{source.tensor}: groups of {8 * run} rows are {8 * run * pitch} bytes apart, 2^40 or more")
    order = (2, 4, run)
    return (*order, rows // (8 * run)), (pitch, 2 * run * pitch, 2 * pitch, 8 * run * pitch), (*order, box // (8 * run))
