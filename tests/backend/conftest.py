"""A CUDA driver and an array library made of host memory, so that everything up to the launch runs without a GPU."""

# ruff: noqa: N802 (the names of the driver's functions)

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coda_lang import arrays
from coda_lang.arrays import ArrayView, packed_strides
from coda_lang.backend_cutlass import toolchain
from coda_lang.backend_cutlass.abi import CType, Emitted, Source, layout
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.device import Device
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.backend_cutlass.report import Report
from coda_lang.errors import BackendError
from coda_lang.ir.types import axis_dim

ONES = """
extern "C" __global__ void ones(const __grid_constant__ struct Params p);
struct __align__(64) Params { float* out; int n; };
extern "C" __global__ void ones(const __grid_constant__ Params p) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < p.n) p.out[i] = 1.0f;
}
"""


@dataclass
class Launch:
    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    stream: int
    context: int
    block: bytes
    early: bool


@dataclass
class FakeCuda:
    """The driver's C interface as Python functions: what it is asked to do is recorded, what it answers can be set."""

    version: int = 13000
    devices: int = 2
    capability: tuple[int, int] = (9, 0)
    capturing: bool = False
    block_bytes: int = 64
    fails: dict[str, int] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=lambda: [77])
    launches: list[Launch] = field(default_factory=list)
    loads: list[tuple[int, str]] = field(default_factory=list)
    shared: dict[int, int] = field(default_factory=dict)
    encodes: int = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name in self.fails:
                return self.fails[name]
            return int(getattr(self, f"_{name}", lambda *a: 0)(*arguments) or 0)

        self.__dict__[name] = call
        return call

    def _cuGetErrorName(self, status: int, out: Any) -> None:
        out._obj.value = f"CUDA_ERROR_{status}".encode()

    def _cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = self.version

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = self.devices

    def _cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out._obj.value = ordinal

    def _cuDeviceGetName(self, out: Any, size: int, device: int) -> None:
        out.value = b"Fake GPU"

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> None:
        out._obj.value = {75: self.capability[0], 76: self.capability[1], 16: 132}[attribute]

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out._obj.value = 1000 + device

    def _cuCtxGetCurrent(self, out: Any) -> None:
        out._obj.value = self.contexts[-1]

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, out: Any) -> None:
        out._obj.value = self.contexts.pop()

    def _cuModuleLoadData(self, out: Any, image: bytes) -> None:
        out._obj.value = 5

    def _cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
        self.loads.append((self.contexts[-1], name.decode()))
        out._obj.value = 9000 + self.contexts[-1]

    def _cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> None:
        assert attribute == 8
        self.shared[function.value] = value

    def _cuOccupancyMaxActiveClusters(self, out: Any, function: Any, config: Any) -> None:
        """On 132 multiprocessors in GPCs of 16 or 18."""
        given = config._obj
        attribute = given.attributes[0]
        assert (given.count, attribute.id, list(given.grid)) == (1, 4, list(attribute.value[:3]))
        blocks = attribute.value[0] * attribute.value[1] * attribute.value[2]
        out._obj.value = 132 // blocks if blocks <= 2 else 8 * (16 // blocks)

    def _cuStreamIsCapturing(self, stream: Any, out: Any) -> None:
        out._obj.value = int(self.capturing)

    def _cuTensorMapEncodeTiled(
        self, out: Any, kind: int, rank: int, address: Any, dims: Any, strides: Any, box: Any, steps: Any, *rest: int
    ) -> int:
        """Refuses what the hardware refuses; else writes the arguments where the descriptor goes."""
        self.encodes += 1
        good = rank == 2 and out.value % 64 == 0 and (address.value or 0) % 16 == 0 and strides[0] % 16 == 0
        good = good and all(d > 0 for d in dims) and all(0 < b <= 256 for b in box) and list(steps) == [1, 1]
        if not good:
            return 1
        words = [address.value or 0, kind, *dims, strides[0], *box, *rest]
        ctypes.memmove(out.value, np.array(words, np.uint64).tobytes(), 8 * len(words))
        return 0

    def _cuTensorMapReplaceAddress(self, out: Any, address: Any) -> None:
        ctypes.memmove(out.value, np.uint64(address.value).tobytes(), 8)

    def _cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: None) -> None:
        flags = {a.id: a.value[0] for a in config.attributes[: config.count]}
        block = ctypes.string_at(ctypes.c_void_p.from_address(pointers.value).value or 0, self.block_bytes)
        early = bool(flags.get(6))
        self.launches.append(
            Launch(function.value, tuple(config.grid), config.block[0], config.shared, config.stream or 0,
                   self.contexts[-1], block, early)
        )  # fmt: skip


class FakeLibrary:
    """CUDA arrays that are NumPy arrays: `copy` works, and a stream per device can be set."""

    def __init__(self) -> None:
        self.streams = {0: 0, 1: 0}
        self.copies: list[tuple[Any, Any]] = []

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> FakeArray:
        return FakeArray.make(np.zeros(shape, arrays.numpy_dtype(dtype)), device)

    def typed(self, memory: FakeArray, dtype: str) -> FakeArray:
        return FakeArray(memory.data.view(arrays.numpy_dtype(dtype)), memory.device)

    def copy(self, target: FakeArray, source: FakeArray, device: int) -> None:
        self.copies.append((target, source))
        target.data[...] = source.data

    def stream(self, device: int) -> int:
        return self.streams[device]

    def to_host(self, array: FakeArray) -> np.ndarray[Any, Any]:
        return array.data.copy()


@dataclass
class FakeArray:
    data: np.ndarray[Any, Any]
    device: int

    @staticmethod
    def make(data: np.ndarray[Any, Any], device: int = 0) -> FakeArray:
        return FakeArray(data, device)

    def __getitem__(self, key: Any) -> FakeArray:
        return FakeArray(self.data[key], self.device)

    def reshape(self, shape: tuple[int, ...]) -> FakeArray:
        return FakeArray(self.data.reshape(shape), self.device)

    def view(self) -> ArrayView:
        v = arrays.view(self.data)
        return ArrayView(v.pointer, v.shape, v.strides, v.dtype, self.device, self, "cupy", v.readonly)


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def fake_library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Stands for CuPy in `arrays`; FakeArrays are then arrays on a GPU."""
    made, plain = FakeLibrary(), arrays.view
    monkeypatch.setitem(arrays._LIBRARIES, "cupy", made)

    def view(array: Any, name: str = "array", dtype: str | None = None) -> ArrayView:
        return array.view() if isinstance(array, FakeArray) else plain(array, name, dtype)

    monkeypatch.setattr(arrays, "view", view)
    return made


@pytest.fixture
def on_gpu(fake_library: FakeLibrary) -> Callable[..., FakeArray]:
    """A FakeArray of an element type: `offset` bytes past a multiple of 256, and rows `pitch` elements apart."""

    def make(shape: tuple[int, ...], dtype: str = "f32", device: int = 0, offset: int = 0, pitch: int = 0) -> FakeArray:
        kind = arrays.numpy_dtype(dtype)
        strides = list(packed_strides(shape))
        if pitch:
            strides[0] = pitch
        need = (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * kind.itemsize
        memory = np.zeros(max(need, 0) + 512 + offset, np.uint8)
        start = -memory.ctypes.data % 256 + offset
        bytewise = tuple(s * kind.itemsize for s in strides)
        return FakeArray(np.ndarray(shape, kind, memory, start, bytewise), device)

    return make


@pytest.fixture
def machine(cuda: FakeCuda) -> Any:
    """(driver, device lookup) over the fake."""
    driver = Driver(cuda)
    return driver, lambda ordinal: Device(ordinal, "Fake GPU", 132, 1000 + ordinal)


_numbers = itertools.count()


@pytest.fixture
def emit() -> Callable[..., Emitted]:
    """An `Emitted` of given fields; without fields, a kernel that writes ones and that NVRTC can compile."""

    def make(fields: list[tuple[str, CType, Source]] | None = None, **changes: Any) -> Emitted:
        from coda_lang.backend_cutlass.abi import Extent, Pointer

        fields = fields or [("out", "void*", Pointer("out")), ("n", "int32_t", Extent(axis_dim("N")))]
        placed, size = layout(fields)
        values: dict[str, Any] = {
            "source": ONES,
            "entry": "ones",
            "fields": placed,
            "params_bytes": size,
            "threads": 128,
            "shared_bytes": 0,
            "blocks": ((axis_dim("N"), 128),),
            "persistent": False,
            "cluster": (1, 1),
            "tile": None,
            "lines": {},
        }
        return Emitted(**(values | changes))

    return make


@pytest.fixture
def fake_cubin() -> Cubin:
    report = Report(8, 0, 0, 0, 0, 0, 0, 4, "sm_90a", "13.0", (), False, 0.0, 0.0)
    return Cubin(b"\x7fELF", "ones", "sm_90a", "0" * 64, report)


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="session")
def tools() -> toolchain.Toolchain:
    """The installed toolchain; tests that compile are skipped without the `[gpu]` extra."""
    try:
        return toolchain.find()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """C++, compiled for the host and loaded: what the headers do without the GPU's own instructions."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def compiled(text: str) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("host")
        (folder / "code.cpp").write_text(text)
        command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "code.cpp", "-o", "code.so"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return ctypes.CDLL(str(folder / "code.so"))

    return compiled
