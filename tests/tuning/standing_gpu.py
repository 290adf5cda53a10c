"""A GPU that stands in: arrays in host memory, a driver of Python functions, a clock that launches move.

All is real but the machine code: what is launched is decoded from its parameter block, as a kernel would read it, and
computed by the interpreter. How long a schedule takes, and which ones compute wrongly, a test says.
"""

# ruff: noqa: N802 (the names of the driver's functions)

from __future__ import annotations

import ctypes
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang import arrays
from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass import build, device, driver, program, toolchain
from coda_lang.backend_cutlass.abi import Emitted, Pointer, Scalar, TensorMap
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.backend_cutlass.report import Report
from coda_lang.errors import BackendError
from coda_lang.measure import gpu as stopwatch
from coda_lang.tuning import tune as tuner

PROGRAMS = Path(__file__).parents[2] / "programs"
REPORT = Report(168, 0, 0, 0, 1024, 200_000, 64, 90_000, "sm_90a", "13.0", (), False, 3.9, 3.9)


BEST = Config(64, 64, 2, 1, "pingpong")


def favour(best: Config) -> Callable[[Config | None], float]:
    """Milliseconds that fall with each respect in which a schedule is like the best."""

    def ms(config: Config | None) -> float:
        assert config is not None
        same = sum(getattr(config, n) == getattr(best, n) for n in ("tile_m", "tile_n", "schedule"))
        return 0.2 - 0.03 * same - 0.01 * ((config.cluster_m, config.cluster_n) == (best.cluster_m, best.cluster_n))

    return ms


@dataclass(eq=False)
class FakeArray:
    data: np.ndarray[Any, Any]
    device: int = 0

    def __getitem__(self, key: Any) -> FakeArray:
        return FakeArray(self.data[key], self.device)


@dataclass(eq=False)
class FakeGpu:
    """`ms(config)` is how long a launch takes, None for what has no schedule; `wrong` and `idle` are the schedules that
    write a wrong element and nothing at all; `broken` do not compile, `warned` compile with ptxas's warning.
    """

    ms: Callable[[Config | None], float] = lambda config: 0.1
    wrong: Callable[[Config], bool] = lambda config: False
    idle: Callable[[Config], bool] = lambda config: False
    broken: Callable[[Config], bool] = lambda config: False
    warned: Callable[[Config], bool] = lambda config: False
    noise: float = 0.002
    capturing: bool = False
    clock: float = 0.0
    launches: int = 0
    computed: int = 0
    compiled: list[Config] = field(default_factory=list)
    memory: dict[int, FakeArray] = field(default_factory=dict)
    served: dict[str, coda.Program] = field(default_factory=dict)
    functions: list[tuple[Emitted, Config | None]] = field(default_factory=list)
    events: dict[int, float] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    poisoned: bool = False

    # -- memory --

    def hold(self, data: np.ndarray[Any, Any], device: int = 0) -> FakeArray:
        """A packed copy at an aligned address, which the device knows."""
        memory = np.zeros(data.nbytes + 512, np.uint8)
        start = -memory.ctypes.data % 256
        held = memory[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
        held[...] = data
        made = FakeArray(held, device)
        self.memory[held.ctypes.data] = made
        return made

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> FakeArray:
        return self.hold(np.zeros(shape, arrays.numpy_dtype(dtype)), device)

    def copy(self, target: FakeArray, source: FakeArray, device: int) -> None:
        target.data[...] = source.data

    def stream(self, device: int) -> int:
        return 0

    def to_host(self, array: FakeArray) -> np.ndarray[Any, Any]:
        return array.data.copy()

    # -- compiling --

    def serve(self, found: coda.Program) -> coda.Program:
        self.served[found.name] = found
        return found

    def compile(self, emitted: Emitted, *rest: Any, **more: Any) -> Cubin:
        config = _config(emitted)
        if config is not None:
            self.compiled.append(config)
            if self.broken(config):
                raise BackendError("ptxas: fatal", "report it")
        warnings = (
            ("ptxas info: Potential Performance Loss: wgmma",) if config is not None and self.warned(config) else ()
        )
        return Cubin(pickle.dumps(emitted), emitted.entry, "sm_90a", "0" * 64, replace(REPORT, warnings=warnings))

    def compile_many(
        self, kernels: Sequence[Emitted], *, done: Callable[[int, object], None], **more: Any
    ) -> list[Cubin | BackendError]:
        outcomes: list[Cubin | BackendError] = []
        for i, emitted in enumerate(kernels):
            try:
                outcomes.append(self.compile(emitted))
            except BackendError as error:
                outcomes.append(error)
            done(i, outcomes[-1])
        return outcomes

    # -- the driver --

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            method = getattr(type(self), f"_{name}", None)
            return 0 if method is None else int(method(self, *arguments) or 0)

        self.__dict__[name] = call
        return call

    def _cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = 13000

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = 1

    def _cuDeviceGetName(self, out: Any, size: int, device: int) -> None:
        out.value = b"Standing GPU"

    def _cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> None:
        out._obj.value = {75: 9, 76: 0, 16: 132}[attribute]

    def _cuModuleLoadData(self, out: Any, image: bytes) -> None:
        emitted = pickle.loads(image)
        self.functions.append((emitted, _config(emitted)))
        out._obj.value = len(self.functions)

    def _cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
        out._obj.value = module.value

    def _cuStreamIsCapturing(self, stream: Any, out: Any) -> None:
        out._obj.value = int(self.capturing)

    def _cuTensorMapEncodeTiled(self, out: Any, kind: int, rank: int, address: Any, *rest: Any) -> None:
        ctypes.memmove(out.value, np.uint64(address.value or 0).tobytes(), 8)

    def _cuTensorMapReplaceAddress(self, out: Any, address: Any) -> None:
        ctypes.memmove(out.value, np.uint64(address.value or 0).tobytes(), 8)

    def _cuMemsetD8Async(self, pointer: Any, byte: Any, size: Any, stream: Any) -> None:
        ctypes.memset(pointer.value, byte.value, size.value)
        self.poisoned = True

    def _cuEventCreate(self, out: Any, flags: int) -> None:
        out._obj.value = len(self.events) + 1
        self.events[out._obj.value] = 0.0

    def _cuEventRecord(self, event: Any, stream: Any) -> None:
        self.events[event.value] = self.clock

    def _cuEventElapsedTime(self, out: Any, start: Any, end: Any) -> None:
        out._obj.value = self.events[end.value] - self.events[start.value]

    def _cuLaunchKernelEx(self, launch: Any, function: Any, pointers: Any, extra: None) -> None:
        emitted, config = self.functions[function.value - 1]
        block = ctypes.c_void_p.from_address(pointers.value).value or 0
        if emitted.entry == "coda_spin":
            self.clock += ctypes.c_int64.from_address(block).value / 2e6
            return
        self.launches += 1
        self.clock += self.ms(config) * (1 + self.noise * self.random.gauss(0, 1))
        found = self.served[emitted.entry.removeprefix("cutlass_").removeprefix("coda_")]
        if self.poisoned or any(p.inout for p in found.ir.params):
            self.poisoned = False
            self._compute(found, emitted, config, block)

    def _compute(self, found: coda.Program, emitted: Emitted, config: Config | None, block: int) -> None:
        """What the kernel would write, from the addresses and numbers in its parameter block."""
        self.computed += 1
        if config is not None and self.idle(config):
            return
        data: dict[str, Any] = {}
        for f in emitted.fields:
            if isinstance(f.source, (TensorMap, Pointer)):
                data[f.source.tensor] = self.memory[ctypes.c_uint64.from_address(block + f.offset).value].data
            elif isinstance(f.source, Scalar):
                kind = {"float": ctypes.c_float, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64}[f.ctype]
                data[f.source.param] = kind.from_address(block + f.offset).value
        params = {p.name for p in found.ir.params}
        inputs = {n: x for n, x in data.items() if n in params}
        out = {n.removesuffix("'"): x for n, x in data.items() if n not in params}
        tile = emitted.tile or (128, 256)
        found.interpret(**inputs, tile=tile, outputs=list(out), out=out)
        if config is not None and self.wrong(config):
            changed = next(iter(out.values()), None)
            target = changed if changed is not None else data[next(p.name for p in found.ir.params if p.inout)]
            target[-1, -1] = 1000


def _config(emitted: Emitted) -> Config | None:
    """The schedule that the source's first line names."""
    line = emitted.source.splitlines()[0]
    _, _, text = line.partition(": ")
    return Config.parse(text) if line.startswith("// kernel") else None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    """The stand-in as device 0 of this process, with a cache folder of its own."""
    made = FakeGpu()
    plain = arrays.view
    loaded = Driver(made)

    def view(array: Any, name: str = "array", dtype: str | None = None) -> ArrayView:
        if not isinstance(array, FakeArray):
            return plain(array, name, dtype)
        v = plain(array.data)
        return ArrayView(v.pointer, v.shape, v.strides, v.dtype, array.device, array, "cupy", v.readonly)

    monkeypatch.setitem(arrays._LIBRARIES, "cupy", made)
    monkeypatch.setattr(arrays, "view", view)
    monkeypatch.setattr(arrays, "to_device", lambda x, device=0, name="": made.hold(x, device))
    monkeypatch.setattr(driver, "load", lambda: loaded)
    device.get.cache_clear()
    monkeypatch.setattr(program, "compile_kernel", made.compile)
    monkeypatch.setattr(stopwatch, "compile_kernel", made.compile)
    monkeypatch.setattr(tuner, "compile_many", made.compile_many)
    monkeypatch.setattr(toolchain, "find", lambda: None)
    monkeypatch.setattr(build, "digests", lambda tools, memo: ("our headers", "the toolchain"))
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CODA_TUNED", raising=False)
    yield made
    device.get.cache_clear()


@pytest.fixture
def linear(fake: FakeGpu) -> coda.Program:
    return fake.serve(coda.load(PROGRAMS / "linear.coda")["linear"])


@pytest.fixture
def arguments(fake: FakeGpu) -> Callable[..., dict[str, Any]]:
    """Small integers, so that every sum is exact: a [m, k] and b [n, k]."""

    def make(m: int = 200, n: int = 320, k: int = 64, dtype: str = "bf16") -> dict[str, Any]:
        rng = np.random.default_rng(0)
        kind = arrays.numpy_dtype(dtype)
        return {
            "a": fake.hold(rng.integers(-2, 3, (m, k)).astype(kind)),
            "b": fake.hold(rng.integers(-2, 3, (n, k)).astype(kind)),
        }

    return make
