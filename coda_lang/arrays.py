"""Arrays of any library as one small view, and new ones made by the library that a call's arrays come from.

NumPy and CuPy arrays, torch tensors and whatever else speaks DLPack are read without a copy. bf16 and f8 are
`ml_dtypes` types in NumPy and torch's own in torch; CuPy 14 knows bfloat16, and holds f8 as uint8
arrays of the bits. Neither CuPy nor torch is imported unless an array of theirs comes in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from coda_lang import dlpack
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.types import DTYPES

ITEM_BYTES = {name: dtype.bits // 8 for name, dtype in DTYPES.items()}

_NUMPY_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}
_NAMES_IN_NUMPY = {ours: theirs for theirs, ours in _NUMPY_NAMES.items()}
F8 = ("f8e4m3", "f8e5m2")
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Where an array's elements are. `strides` in elements; `device` a CUDA ordinal, or None for host memory.

    `owner` keeps the memory alive; it is the caller's own object, except that a CUDA array of a library other than
    CuPy and torch is held by a CuPy array (or a torch tensor) over the same memory.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None
    owner: Any
    library: str  # "numpy", "cupy", "torch" or, for host memory of others, "dlpack"
    readonly: bool = False

    @property
    def nbytes(self) -> int:
        """What the elements take, without what strides leave between them."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def span(self) -> tuple[int, int]:
        """The addresses of its first byte and past its last one; an empty array has a span too."""
        item = ITEM_BYTES[self.dtype]
        return span(self.pointer, self.shape, self.strides, item, item)


def span(pointer: int, shape: Sequence[int], strides: Sequence[int], unit: int, item: int) -> tuple[int, int]:
    """The addresses of the first byte and past the last one; a stride counts `unit` bytes, an element has `item`."""
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return pointer + low * unit, pointer + high * unit + item


class Library(Protocol):
    """What the launcher needs of CuPy or torch."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        """A new C-contiguous array on a CUDA device; the current device stays as it is."""

    def typed(self, memory: Any, dtype: str) -> Any:
        """The bytes of a one-dimensional bool array as elements of another type."""

    def copy(self, target: Any, source: Any, device: int) -> None:
        """Element by element, on the library's current stream of the device."""

    def stream(self, device: int) -> int:
        """The handle of the library's current stream of a device; 0 is the default stream."""

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """A NumPy copy, after the work queued on the current stream."""


def view(array: Any, name: str = "array", dtype: str | None = None) -> ArrayView:
    """The view of an array; `name` is for the messages.

    CuPy has no f8 arrays: they are uint8 arrays of the bits, and are read so where `dtype`, the type that the
    program wants, is an f8 one.

    Raises:
        ArgumentError: not an array, or of an element type or layout that the language has no name for.
    """
    if isinstance(array, ArrayView):
        return array
    if isinstance(array, np.ndarray):
        return _numpy_view(array, name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch_view(array, name)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _cupy_view(array, name, dtype)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _dlpack_view(array, name)
    raise ArgumentError(f"{name}: expected an array (NumPy, CuPy, torch or DLPack), got {type(array).__name__}")


def wants_gradient(array: Any) -> bool:
    """Whether what is computed from a torch tensor should have a gradient."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    return bool(array.requires_grad and torch.is_grad_enabled())


def written(array: Any) -> None:
    """Tells autograd that an array was written, if it is a torch tensor: what it saved of it is then refused."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def library(name: str) -> Library:
    """The library of a view, by its name; only "cupy" and "torch" hold CUDA memory.

    Raises:
        BackendError: it is not installed.
    """
    if name not in _LIBRARIES:
        _LIBRARIES[name] = _Torch() if name == "torch" else _Cupy()
    return _LIBRARIES[name]


def cuda_library(views: Iterable[ArrayView]) -> str:
    """The library that makes a call's outputs: torch if a CUDA tensor of torch is among the arrays, else CuPy."""
    return "torch" if any(v.library == "torch" and v.device is not None for v in views) else "cupy"


def common_device(views: dict[str, ArrayView]) -> int | None:
    """The one CUDA device of a call's arrays, or None if all are in host memory.

    Raises:
        ArgumentError: they are on several.
    """
    where = {name: v.device for name, v in views.items()}
    if len(set(where.values())) > 1:
        places = ", ".join(f"{n} on {'the host' if d is None else f'cuda:{d}'}" for n, d in where.items())
        raise ArgumentError(f"all arrays of a call must be on one device, got {places}")
    return next(iter(where.values()), None)


def current_stream(views: Iterable[ArrayView], device: int) -> int:
    """The stream that a call runs on: the current one of the library its arrays come from.

    Raises:
        ArgumentError: the arrays come from two libraries whose current streams differ, so that no order is right.
    """
    names = sorted({v.library for v in views if v.device is not None})
    streams = {name: library(name).stream(device) for name in names}
    if len(set(streams.values())) > 1:
        raise ArgumentError(
            "the arrays come from CuPy and torch, whose current streams differ: make one stream current in both "
            "(cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)), or pass arrays of one library"
        )
    return next(iter(streams.values()), 0)


def to_numpy(array: Any, name: str = "array") -> np.ndarray[Any, Any]:
    """The array as NumPy (bf16 and f8 as `ml_dtypes`): without a copy from host memory, with one from a GPU.

    Raises:
        ArgumentError: as `view`.
    """
    v = view(array, name)
    if isinstance(v.owner, np.ndarray):
        return v.owner
    if v.device is not None:
        return library(v.library).to_host(v.owner).view(numpy_dtype(v.dtype))
    item = ITEM_BYTES[v.dtype]
    raw = np.asarray(_HostMemory(v, f"<u{item}", item))
    return raw.view(numpy_dtype(v.dtype))


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A CPU tensor over a NumPy array's memory, bf16 and f8 included."""
    import torch

    ours = _named(array.dtype, "array")
    item = ITEM_BYTES[ours]
    if array.dtype.kind in "fiub" and ours not in ("bf16", "f8e4m3", "f8e5m2"):
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(np.int16 if item == 2 else np.uint8))
    return bits.view(getattr(torch, _NAMES_IN_NUMPY[ours]))


def to_device(array: np.ndarray[Any, Any], device: int = 0, name: str = "array") -> Any:
    """A CuPy copy of a NumPy array, bf16 included; of an f8 one, the bits as uint8.

    Raises:
        BackendError: CuPy is not installed, or no memory is left.
    """
    v = _numpy_view(array, name)
    out = library("cupy").empty(v.shape, v.dtype, device)
    cupy = sys.modules["cupy"]
    bits = _UNSIGNED[ITEM_BYTES[v.dtype]]
    with cupy.cuda.Device(device):
        out.view(bits)[...] = cupy.asarray(np.ascontiguousarray(array).reshape(v.shape).view(bits))
    return out


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's (or `ml_dtypes`') type for an element type of the language."""
    theirs = _NAMES_IN_NUMPY[name]
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, theirs))
        return found
    return np.dtype(theirs)


def converted(name: str, dtype: str, library: str) -> str:
    """How the array `name` of a library is written in another element type of the language, for a help line."""
    theirs = _NAMES_IN_NUMPY[dtype]
    if library == "torch":
        return f"`{name}.to(torch.{theirs})`"
    module = "ml_dtypes" if dtype in ("bf16", *F8) else "cupy" if library == "cupy" else "numpy"
    return f"`{name}.astype({module}.{theirs})`"


class _HostMemory:
    """Lets NumPy look at memory that a view's owner keeps alive."""

    def __init__(self, v: ArrayView, typestr: str, item: int) -> None:
        self._owner = v.owner
        self.__array_interface__ = {
            "version": 3,
            "data": (v.pointer, v.readonly),
            "shape": v.shape,
            "strides": tuple(s * item for s in v.strides),
            "typestr": typestr,
        }


def _strides(array: Any, name: str) -> tuple[int, ...]:
    """NumPy's and CuPy's byte strides in elements."""
    item = array.dtype.itemsize
    if any(s % item for s in array.strides):
        raise ArgumentError(f"{name}: strides of {array.strides} bytes are no multiples of the element's {item} bytes")
    return tuple(s // item for s in array.strides)


def _named(dtype: Any, name: str) -> str:
    ours = _NUMPY_NAMES.get(dtype.name) if dtype.isnative else None
    if ours is None:
        raise ArgumentError(f"{name}: no element type of the language is {dtype!r}; there are {', '.join(DTYPES)}")
    return ours


def _numpy_view(array: np.ndarray[Any, Any], name: str) -> ArrayView:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(f"{name}: a masked array has elements that are none: pass x.filled(…)")
    dtype = _named(array.dtype, name)
    pointer = int(array.__array_interface__["data"][0])
    readonly = not array.flags.writeable
    return ArrayView(pointer, array.shape, _strides(array, name), dtype, None, array, "numpy", readonly)


def _cupy_view(array: Any, name: str, wanted: str | None) -> ArrayView:
    bits = wanted in F8 and array.dtype == np.uint8
    dtype = str(wanted) if bits else _named(array.dtype, name)
    return ArrayView(array.data.ptr, array.shape, _strides(array, name), dtype, array.device.id, array, "cupy")


_torch_names: dict[Any, str] = {}


def _torch_view(tensor: Any, name: str) -> ArrayView:
    if not _torch_names:
        torch = sys.modules["torch"]
        _torch_names.update({getattr(torch, theirs): ours for theirs, ours in _NUMPY_NAMES.items()})
    dtype = _torch_names.get(tensor.dtype)
    if dtype is None:
        raise ArgumentError(f"{name}: no element type of the language is {tensor.dtype}; there are {', '.join(DTYPES)}")
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or str(tensor.layout) != "torch.strided":
        got = "a sparse one" if str(tensor.layout) != "torch.strided" else f"one on {tensor.device}"
        raise ArgumentError(f"{name}: expected a dense CPU or CUDA tensor, got {got}")
    lazy = tensor.is_neg()  # the memory holds the opposite: what is read is a copy, and writing to it would be lost
    if lazy:
        tensor = tensor.resolve_neg()
    device = tensor.device.index if kind == "cuda" else None
    try:
        pointer, strides = tensor.data_ptr(), tensor.stride()
    except RuntimeError as error:
        raise ArgumentError(f"{name}: expected a tensor with memory of its own: {error}") from None
    return ArrayView(pointer, tuple(tensor.shape), strides, dtype, device, tensor, "torch", lazy)


def _dlpack_view(array: Any, name: str) -> ArrayView:
    kind, ordinal = (int(x) for x in array.__dlpack_device__())
    on_gpu = kind in (dlpack.CUDA, dlpack.MANAGED)
    if not on_gpu and kind not in (dlpack.HOST, dlpack.CUDA_HOST):
        raise ArgumentError(f"{name}: {type(array).__name__} is on a device that is neither the host nor CUDA")
    holder, arguments = "dlpack", {}
    if on_gpu:
        holder = "torch" if "torch" in sys.modules and "cupy" not in sys.modules else "cupy"
        # The producer orders its work before what comes next on this stream (1 is the legacy default stream).
        arguments["stream"] = library(holder).stream(ordinal) or 1
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **arguments)
        except TypeError:
            capsule = array.__dlpack__(**arguments)  # a producer older than DLPack 1.0
    except Exception as error:
        raise ArgumentError(f"{name}: {type(array).__name__} cannot be read through DLPack: {error}") from error
    pointer, shape, strides, dtype, readonly = dlpack.opened(capsule, name)
    if strides is None:
        strides = packed_strides(shape)
    # The capsule is held, not consumed: when the view goes, its destructor gives the memory back to the producer.
    v = ArrayView(pointer, shape, strides, dtype, ordinal if on_gpu else None, capsule, holder, readonly)
    if not on_gpu:
        return v
    return _held_by_cupy(v) if holder == "cupy" else _torch_view(sys.modules["torch"].from_dlpack(array), name)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a C-contiguous array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def _held_by_cupy(v: ArrayView) -> ArrayView:
    cupy = sys.modules["cupy"]
    item = ITEM_BYTES[v.dtype]
    size = (1 + sum((n - 1) * abs(s) for n, s in zip(v.shape, v.strides, strict=True))) * item
    memory = cupy.cuda.UnownedMemory(v.pointer, size, v.owner, v.device)
    strides = tuple(s * item for s in v.strides)
    array = cupy.ndarray(v.shape, numpy_dtype(v.dtype), cupy.cuda.MemoryPointer(memory, 0), strides)
    return ArrayView(v.pointer, v.shape, v.strides, v.dtype, v.device, array, "cupy", v.readonly)


_LIBRARIES: dict[str, Library] = {}


class _Torch:
    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._dtypes = {ours: getattr(torch, theirs) for theirs, ours in _NUMPY_NAMES.items()}
        # The private function is what torch's own generated code calls: a tenth of the public one's time.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        try:
            return self._torch.empty(shape, dtype=self._dtypes[dtype], device=f"cuda:{device}")
        except self._torch.cuda.OutOfMemoryError as error:
            raise _out_of_memory(shape, dtype, device) from error

    def typed(self, memory: Any, dtype: str) -> Any:
        return memory.view(self._dtypes[dtype])

    def copy(self, target: Any, source: Any, device: int) -> None:
        with self._torch.no_grad():
            target.copy_(source)

    def stream(self, device: int) -> int:
        if self._raw_stream is not None:
            return int(self._raw_stream(device))
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return to_numpy(array.detach().cpu())


class _Cupy:
    def __init__(self) -> None:
        try:
            import cupy  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise BackendError("CuPy is not installed", "pip install 'coda-lang[gpu]' (cupy-cuda13x)") from error
        self._cupy = cupy

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        cupy = self._cupy
        try:
            with cupy.cuda.Device(device):
                return cupy.ndarray(shape, np.uint8 if dtype in F8 else numpy_dtype(dtype))
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise _out_of_memory(shape, dtype, device) from error

    def typed(self, memory: Any, dtype: str) -> Any:
        return memory.view(np.uint8 if dtype in F8 else numpy_dtype(dtype))

    def copy(self, target: Any, source: Any, device: int) -> None:
        bits = _UNSIGNED[target.dtype.itemsize]  # CuPy copies bits of any type, but not values of f8
        with self._cupy.cuda.Device(device):
            target.view(bits)[...] = source.view(bits)

    def stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        with array.device:
            raw = array.view(_UNSIGNED[array.dtype.itemsize]).get()
        return np.asarray(raw).view(array.dtype)


def _out_of_memory(shape: tuple[int, ...], dtype: str, device: int) -> BackendError:
    size = ITEM_BYTES[dtype]
    for extent in shape:
        size *= extent
    return BackendError(
        f"no memory for {dtype}{list(shape)} ({size / 2**20:.1f} MiB) on cuda:{device}",
        "free arrays that are not needed (torch.cuda.empty_cache(), cupy.get_default_memory_pool().free_all_blocks()) "
        "or use smaller ones",
    )
