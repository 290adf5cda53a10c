"""A stopwatch on a GPU: events around calls that are queued behind a spinning kernel, by the driver alone."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coda_lang import arrays
from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass import device, driver
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.backend_cutlass.build import compile_kernel

_CLOCK = 2.0e9  # Hz: no Hopper GPU runs faster, so that a spin is never too short
_LONGEST_SPIN = 0.1  # seconds

_SPIN = Emitted(
    source="""// Keeps a stream busy while calls are queued behind it.
extern "C" __global__ void coda_spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}
""",
    entry="coda_spin",
    fields=(),
    params_bytes=64,
    threads=1,
    shared_bytes=0,
    blocks=(),
    persistent=False,
    cluster=(1, 1),
    tile=None,
    lines={},
)


class GpuStopwatch:
    """Times calls on the current stream of an array library, on one device."""

    def __init__(self, ordinal: int = 0, library: str = "cupy") -> None:
        self._device = device.get(ordinal)
        self._cuda = driver.load()
        self._library = arrays.library(library)
        self._events: tuple[int, int] | None = None
        self._spin: int | None = None

    @property
    def name(self) -> str:
        return self._device.name

    def series(self, call: Callable[[], object], count: int, queue_seconds: float) -> float:
        """Milliseconds of one call, from `count` calls in a row on a busy stream: no time of the host enters.

        `queue_seconds` is how long the host takes to queue them.
        """
        start, end = self._pair()
        self.spin(queue_seconds)
        self._record(start)
        for _ in range(count):
            call()
        self._record(end)
        return self._between(start, end) / count

    def queue_seconds(self, call: Callable[[], object], count: int) -> float:
        """How long the host takes for `count` calls; the device is idle before and after."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - start
        self.synchronize()
        return seconds

    def spin(self, seconds: float) -> None:
        """Queues a kernel that does nothing for about so long."""
        cycles = ctypes.c_int64(int(min(seconds, _LONGEST_SPIN) * _CLOCK))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
        with self._current():
            if self._spin is None:
                cubin = compile_kernel(_SPIN)
                self._spin = self._cuda.load(cubin.data, cubin.entry)
            self._cuda.launch(self._spin, (1, 1, 1), 1, 0, self._stream(), ctypes.addressof(pointers))

    def fill(self, view: ArrayView, byte: int) -> None:
        """Sets every byte of a packed array."""
        if not view.nbytes:
            return
        with self._current():
            pointer, stream = ctypes.c_void_p(view.pointer), ctypes.c_void_p(self._stream())
            status = self._cuda.raw.cuMemsetD8Async(pointer, ctypes.c_ubyte(byte), ctypes.c_size_t(view.nbytes), stream)
            self._cuda.check(status, "cuMemsetD8Async")

    def synchronize(self) -> None:
        with self._current():
            self._cuda.check(self._cuda.raw.cuStreamSynchronize(ctypes.c_void_p(self._stream())), "cuStreamSynchronize")

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    # -- events --

    def _pair(self) -> tuple[int, int]:
        if self._events is None:
            self._events = self._event(), self._event()
        return self._events

    def _event(self) -> int:
        event = ctypes.c_void_p()
        with self._current():
            self._cuda.check(self._cuda.raw.cuEventCreate(ctypes.byref(event), 0), "cuEventCreate")
        return event.value or 0

    def _record(self, event: int) -> None:
        with self._current():
            status = self._cuda.raw.cuEventRecord(ctypes.c_void_p(event), ctypes.c_void_p(self._stream()))
            self._cuda.check(status, "cuEventRecord")

    def _between(self, start: int, end: int) -> float:
        """Milliseconds, once the second event has come."""
        time_ = ctypes.c_float()
        with self._current():
            self._cuda.check(self._cuda.raw.cuEventSynchronize(ctypes.c_void_p(end)), "cuEventSynchronize")
            status = self._cuda.raw.cuEventElapsedTime(
                ctypes.byref(time_), ctypes.c_void_p(start), ctypes.c_void_p(end)
            )
            self._cuda.check(status, "cuEventElapsedTime")
        return time_.value

    def _stream(self) -> int:
        return self._library.stream(self._device.ordinal)

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._cuda.push(self._device.context)
        try:
            yield
        finally:
            self._cuda.pop()
