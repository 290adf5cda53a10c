"""What a DLPack capsule says of the array that it holds (dlpack.h, versions 0 and 1)."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from coda_lang.errors import ArgumentError
from coda_lang.ir.types import DTYPES

# (type code, bits) of DLPack; code 5 is complex
_TYPES = {
    (2, 32): "f32",
    (2, 16): "f16",
    (4, 16): "bf16",
    (10, 8): "f8e4m3",
    (12, 8): "f8e5m2",
    (0, 32): "i32",
    (0, 64): "i64",
    (6, 8): "bool",
}
HOST, CUDA, CUDA_HOST, MANAGED = 1, 2, 3, 13


class Opened(NamedTuple):
    """`strides` in elements; None for a packed array."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    readonly: bool


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


def opened(capsule: Any, name: str) -> Opened:
    """The array in a capsule, which keeps it alive; `name` is for the messages. Raises ArgumentError."""
    tensor, readonly = _tensor(capsule, name)
    dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ArgumentError(
            f"{name}: no element type of the language is DLPack's ({tensor.code}, {tensor.bits} bits); "
            f"there are {', '.join(DTYPES)}"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return Opened((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, readonly)


def _tensor(capsule: Any, name: str) -> tuple[_DLTensor, bool]:
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    if api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise ArgumentError(f"{name}: DLPack version {managed.major} is not supported")
        return managed.tensor, bool(managed.flags & 1)
    if api.PyCapsule_IsValid(capsule, b"dltensor"):
        return _DLTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor")), False
    raise ArgumentError(f"{name}: not a DLPack capsule")
