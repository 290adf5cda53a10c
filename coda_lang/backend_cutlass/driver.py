"""The CUDA driver through ctypes: the dozen calls that loading and launching need, and its errors as messages.

The driver is called directly, not through CuPy or torch, so that a call costs a microsecond and neither library
is needed by users of the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from coda_lang.errors import BackendError

# CUresult values with a message of their own.
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_CONTEXT = 201
NO_BINARY_FOR_GPU = 209
INVALID_IMAGE = 200
STREAM_CAPTURE_UNSUPPORTED = 900
STREAM_CAPTURE_INVALIDATED = 901
STREAM_CAPTURE_IMPLICIT = 906

# CUdevice_attribute and CUfunction_attribute
MULTIPROCESSOR_COUNT = 16
COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
MAX_DYNAMIC_SHARED_BYTES = 8
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6  # CUlaunchAttributeID

_HELP = {
    OUT_OF_MEMORY: "free GPU memory (other processes, the caching allocators of torch and CuPy) or use smaller arrays",
    NOT_INITIALIZED: "CUDA does not survive a fork: start worker processes by spawn, or before the first call",
    NO_BINARY_FOR_GPU: "the kernel was compiled for another architecture than this GPU's",
    INVALID_IMAGE: "update the driver, or clear the compile cache (`coda-run cache clear`)",
    STREAM_CAPTURE_UNSUPPORTED: "call the kernel once before the capture begins",
    STREAM_CAPTURE_INVALIDATED: "an earlier call broke this stream's capture: begin a new one",
}
# An error of the kernel itself: the context is unusable from then on.
_FAULTS = (700, 702, 714, 715, 716, 717, 718, 719)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute; the value is the size of a cluster, or a flag."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """libcuda, initialised. Every method raises `BackendError` with the driver's own name for what went wrong."""

    def __init__(self, library: Any) -> None:
        self.raw = library
        self.check(library.cuInit(0), "cuInit")
        self._launch = library.cuLaunchKernelEx
        self._launch.argtypes = (ctypes.POINTER(_LaunchConfig), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    def check(self, status: int, what: str) -> None:
        if not status:
            return
        text = ctypes.c_char_p()
        self.raw.cuGetErrorName(status, ctypes.byref(text))
        name = text.value.decode() if text.value else "unknown error"
        help = _HELP.get(status)
        if status in _FAULTS:
            help = "a kernel failed; the process has to be restarted. compute-sanitizer shows which access it was"
        raise BackendError(f"{what}: {name} ({status})", help)

    def version(self) -> int:
        """The newest CUDA version that the driver supports: 13000 for 13.0."""
        return self._int(self.raw.cuDriverGetVersion, "cuDriverGetVersion")

    def device_count(self) -> int:
        return self._int(self.raw.cuDeviceGetCount, "cuDeviceGetCount")

    def device_name(self, ordinal: int) -> str:
        name = ctypes.create_string_buffer(256)
        self.check(self.raw.cuDeviceGetName(name, 256, self._device(ordinal)), "cuDeviceGetName")
        return name.value.decode(errors="replace")

    def attribute(self, ordinal: int, attribute: int) -> int:
        return self._int(self.raw.cuDeviceGetAttribute, "cuDeviceGetAttribute", attribute, self._device(ordinal))

    def primary_context(self, ordinal: int) -> int:
        """The device's primary context, which CuPy and torch use too; retained for the life of the process."""
        context = ctypes.c_void_p()
        status = self.raw.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device(ordinal))
        self.check(status, f"the CUDA context of device {ordinal}")
        return context.value or 0

    def current_context(self) -> int:
        context = ctypes.c_void_p()
        self.check(self.raw.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        return context.value or 0

    def push(self, context: int) -> None:
        self.check(self.raw.cuCtxPushCurrent_v2(ctypes.c_void_p(context)), "cuCtxPushCurrent")

    def pop(self) -> None:
        self.check(self.raw.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())), "cuCtxPopCurrent")

    def load(self, image: bytes, entry: str) -> int:
        """The function `entry` of a cubin, loaded into the current context for good."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.raw.cuModuleLoadData(ctypes.byref(module), image), f"loading `{entry}`")
        self.check(self.raw.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), f"finding `{entry}`")
        # By default the driver loads code at its first launch, which may be inside a graph capture.
        self.check(self.raw.cuFuncLoad(function), f"loading `{entry}`")
        return function.value or 0

    def allow_shared(self, function: int, size: int) -> None:
        """Raises a function's limit of dynamic shared memory (48 KiB unless asked for)."""
        status = self.raw.cuFuncSetAttribute(ctypes.c_void_p(function), MAX_DYNAMIC_SHARED_BYTES, size)
        self.check(status, f"{size} bytes of shared memory")

    def active_clusters(self, function: int, cluster: tuple[int, int], threads: int, shared: int) -> int:
        """How many clusters of `cluster` blocks the current device runs at once. They lie within a GPC each."""
        attribute = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(*cluster, 1))
        grid = (ctypes.c_uint * 3)(*cluster, 1)
        config = _LaunchConfig(grid, (ctypes.c_uint * 3)(threads, 1, 1), shared, None, ctypes.pointer(attribute), 1)
        query, what = self.raw.cuOccupancyMaxActiveClusters, f"clusters of {cluster[0]}x{cluster[1]} blocks"
        return self._int(query, what, ctypes.c_void_p(function), ctypes.byref(config))

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream, or for the default stream any other one, is being captured into a CUDA graph."""
        value = ctypes.c_int()
        status = self.raw.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(value))
        if status == INVALID_CONTEXT:
            return False  # this thread has no context, so no stream of its own
        if status == STREAM_CAPTURE_IMPLICIT:
            return True
        self.check(status, "cuStreamIsCapturing")
        return bool(value.value)

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: int
    ) -> None:
        """Launches on the current context; `arguments` is the address of an array of pointers to the arguments."""
        self.prepared(function, grid, threads, shared, arguments, early=False)(stream)

    def prepared(
        self, function: int, grid: tuple[int, int, int], threads: int, shared: int, arguments: int, *, early: bool
    ) -> Callable[[int], None]:
        """`launch` of a stream, the rest converted to C's types once.

        With `early` a grid may begin before what is ahead of it in the stream is done and seen: its code must wait for
        that (`csrc/coda/launch.h`).
        """
        launch, check = self._launch, self.check
        flag = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_uint * 16)(1))
        attributes, count = (ctypes.pointer(flag), 1) if early else (None, 0)
        entry, block = ctypes.c_void_p(function), ctypes.c_void_p(arguments)

        def on(stream: int) -> tuple[int, _LaunchConfig]:
            size = (ctypes.c_uint * 3)(threads, 1, 1)
            return stream, _LaunchConfig((ctypes.c_uint * 3)(*grid), size, shared, stream, attributes, count)

        last = on(0)

        def run(stream: int) -> None:
            nonlocal last
            # Another thread may launch on another stream meanwhile: a configuration is replaced, never changed.
            at, config = last
            if at != stream:
                last = at, config = on(stream)
            status = launch(config, entry, block, None)
            if status:
                check(status, "launching the kernel")

        return run

    def encode_tiled(
        self,
        out: int,
        data_type: int,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
    ) -> None:
        """Writes a 128-byte TMA descriptor to host address `out` (a multiple of 64).

        `dims` and `box` in elements, innermost first; `strides` in bytes, of the outer dimensions. No interleave,
        element strides 1, L2 promotion of 128 bytes, zeros outside the bounds.
        """
        rank = len(dims)
        status = self.raw.cuTensorMapEncodeTiled(
            ctypes.c_void_p(out),
            data_type,
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,  # CU_TENSOR_MAP_INTERLEAVE_NONE
            swizzle,
            2,  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
            0,  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        )
        self.check(status, f"cuTensorMapEncodeTiled(dims={list(dims)}, strides={list(strides)}, box={list(box)})")

    def replace_address(self, descriptor: int, address: int) -> None:
        """Points a TMA descriptor at other memory of the same shape and strides."""
        status = self.raw.cuTensorMapReplaceAddress(ctypes.c_void_p(descriptor), ctypes.c_void_p(address))
        self.check(status, "cuTensorMapReplaceAddress")

    def _device(self, ordinal: int) -> int:
        return self._int(self.raw.cuDeviceGet, f"CUDA device {ordinal}", ordinal)

    def _int(self, function: Any, what: str, *arguments: Any) -> int:
        """Calls a function that returns an int through a pointer, its first argument."""
        value = ctypes.c_int()
        self.check(function(ctypes.byref(value), *arguments), what)
        return value.value


@cache
def load() -> Driver:
    """The driver of this machine.

    Raises:
        BackendError: there is no driver, or it sees no GPU.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(
            "there is no CUDA driver on this machine (libcuda.so.1 cannot be loaded)",
            "install the NVIDIA driver 580 or newer, or run with NumPy arrays (the interpreter)",
        ) from error
    try:
        return Driver(library)
    except BackendError as error:
        raise BackendError(f"the CUDA driver sees no usable GPU: {error.message}", "check `nvidia-smi`") from error
