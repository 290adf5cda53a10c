"""Arrays of any CPU library to NumPy and back, without copies where the memory allows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from coda_lang.errors import ArgumentError
from coda_lang.ir.numerics import STORAGE, Array

_TORCH_NAMES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
    "int32": "i32", "int64": "i64", "bool": "bool",
}  # fmt: skip
_NUMPY_NAMES = {dtype: name for name, dtype in STORAGE.items()}


def is_torch(x: object) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" or any(
        c.__module__.partition(".")[0] == "torch" and c.__name__ == "Tensor" for c in type(x).__mro__
    )


def dtype_name(array: Array) -> str:
    """The language's name of a NumPy element type, or NumPy's own where the language has none."""
    return _NUMPY_NAMES.get(array.dtype, str(array.dtype))


def to_numpy(x: Any, name: str) -> Array:
    """A NumPy view of an argument. Raises ArgumentError for what is no array, or lies on a device."""
    if isinstance(x, np.ndarray):
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    if isinstance(x, (np.generic, bool, int, float)):
        return np.asarray(x)
    if is_torch(x):
        return _from_torch(x, name)
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ArgumentError(f"`{name}`: NumPy cannot take this {type(x).__name__} through DLPack: {error}") from None
    if isinstance(x, (list, tuple)):
        raise ArgumentError(f"`{name}` must be an array, got a {type(x).__name__}: wrap it in numpy.asarray(…)")
    raise ArgumentError(f"`{name}` must be an array, got {type(x).__name__}")


def _from_torch(x: Any, name: str) -> Array:
    if x.device.type != "cpu":
        raise ArgumentError(f"`{name}` is on {x.device}: the interpreter takes CPU tensors, call it with `{name}.cpu()`")
    if x.layout is not _torch().strided or x.is_complex():
        raise ArgumentError(f"`{name}` is a {x.dtype} tensor of layout {x.layout}: pass a dense one of real numbers")
    kind = _TORCH_NAMES.get(str(x.dtype).removeprefix("torch."))
    x = x.detach().resolve_neg()
    if kind is None or STORAGE[kind].kind in "fib" and kind not in ("bf16", "f8e4m3", "f8e5m2"):
        array: Array = x.numpy()
        return array
    bits = x.view(_torch().int16 if STORAGE[kind].itemsize == 2 else _torch().uint8)
    return np.asarray(bits.numpy().view(STORAGE[kind]))


def to_torch(array: Array) -> Any:
    """A CPU tensor that shares an array's memory."""
    torch = _torch()
    kind = dtype_name(array)
    if kind in ("bf16", "f8e4m3", "f8e5m2"):
        bits = torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8))
        return bits.view(next(getattr(torch, t) for t, k in _TORCH_NAMES.items() if k == kind))
    return torch.from_numpy(array)


def _torch() -> Any:
    import torch

    return torch
