"""What is said on a machine that cannot run kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from coda_lang.backend_cutlass import device, driver
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.errors import BackendError


def test_a_hopper_gpu_is_taken(cuda: Any) -> None:
    found = device.check(Driver(cuda), 1)
    assert (found.ordinal, found.name, found.multiprocessors, found.context) == (1, "Fake GPU", 132, 1001)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 12040}, ["CUDA 12.4", "NVRTC 13", "580"]),
        ({"capability": (8, 0)}, ["Fake GPU", "compute capability 8.0", "H100"]),
        ({"capability": (10, 0)}, ["10.0", "Hopper"]),
        ({"devices": 0}, ["no GPU is visible", "CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_what_stands_in_the_way(cuda: Any, changes: dict[str, Any], words: list[str]) -> None:
    for name, value in changes.items():
        setattr(cuda, name, value)
    with pytest.raises(BackendError) as caught:
        device.check(Driver(cuda), 0)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.help


def test_a_device_that_is_not_there(cuda: Any) -> None:
    with pytest.raises(BackendError, match="no CUDA device 5"):
        device.check(Driver(cuda), 5)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    driver.load.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(BackendError, match=r"no CUDA driver.*libcuda\.so\.1") as caught:
        driver.load()
    assert "580" in (caught.value.help or "")
    driver.load.cache_clear()


def test_a_driver_that_does_not_start(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.fails["cuInit"] = 999
    driver.load.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: cuda)
    with pytest.raises(BackendError, match="CUDA_ERROR_999") as caught:
        driver.load()
    assert "nvidia-smi" in (caught.value.help or "")
    driver.load.cache_clear()


def test_out_of_memory_says_what_to_do(cuda: Any) -> None:
    cuda.fails["cuDevicePrimaryCtxRetain"] = 2
    with pytest.raises(BackendError, match=r"context of device 0: CUDA_ERROR_2") as caught:
        device.check(Driver(cuda), 0)
    assert "free GPU memory" in (caught.value.help or "")


def test_a_fault_of_a_kernel_names_the_tool(cuda: Any) -> None:
    with pytest.raises(BackendError, match="compute-sanitizer"):
        Driver(cuda).check(700, "launching the kernel")


def test_without_a_context_nothing_is_captured(cuda: Any) -> None:
    """What asks before the first array of a process: the driver has no context to look in."""
    cuda.fails["cuStreamIsCapturing"] = 201
    assert not Driver(cuda).is_capturing(0)
    cuda.fails["cuStreamIsCapturing"] = 1
    with pytest.raises(BackendError, match="cuStreamIsCapturing"):
        Driver(cuda).is_capturing(0)


def test_capture_of_another_stream_counts_for_the_default_one(cuda: Any) -> None:
    cuda.fails["cuStreamIsCapturing"] = 906
    assert Driver(cuda).is_capturing(0)
    cuda.fails["cuStreamIsCapturing"] = 1
    with pytest.raises(BackendError):
        Driver(cuda).is_capturing(0)
