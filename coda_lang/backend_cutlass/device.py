"""Which GPUs can run the kernels, and what stands in the way of one that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from coda_lang.backend_cutlass import driver
from coda_lang.backend_cutlass.driver import Driver
from coda_lang.backend_cutlass.toolchain import CUDA_MAJOR
from coda_lang.errors import BackendError

HOPPER = (9, 0)
DRIVER_BRANCH = 580  # the first NVIDIA driver with CUDA 13


@dataclass(frozen=True)
class Device:
    """A usable GPU: its ordinal, name, number of multiprocessors and primary context."""

    ordinal: int
    name: str
    multiprocessors: int
    context: int


@cache
def get(ordinal: int = 0) -> Device:
    """The device of that ordinal.

    Raises:
        BackendError: no driver, no such GPU, a driver older than the toolkit, or a GPU that is not Hopper.
    """
    return check(driver.load(), ordinal)


def check(cuda: Driver, ordinal: int) -> Device:
    """As `get`, for a driver given."""
    version = cuda.version()
    if version // 1000 < CUDA_MAJOR:
        raise BackendError(
            f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}, but kernels are compiled by "
            f"NVRTC {CUDA_MAJOR}.x",
            f"update the driver to {DRIVER_BRANCH} or newer",
        )
    count = cuda.device_count()
    if not 0 <= ordinal < count:
        if not count:
            raise BackendError("no GPU is visible", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES")
        raise BackendError(f"there is no CUDA device {ordinal}", f"visible devices: 0 to {count - 1}")
    name = cuda.device_name(ordinal)
    capability = (cuda.attribute(ordinal, driver.COMPUTE_MAJOR), cuda.attribute(ordinal, driver.COMPUTE_MINOR))
    if capability != HOPPER:
        raise BackendError(
            f"device {ordinal} is a {name} (compute capability {capability[0]}.{capability[1]}); kernels need a "
            "Hopper GPU (9.0)",
            "use an H100, H200 or GH200, or NumPy arrays (the interpreter)",
        )
    multiprocessors = cuda.attribute(ordinal, driver.MULTIPROCESSOR_COUNT)
    return Device(ordinal, name, multiprocessors, cuda.primary_context(ordinal))


def available() -> str | None:
    """None if device 0 can run kernels, else the reason in one line (for tests that skip and `--backend auto`)."""
    try:
        get(0)
    except BackendError as error:
        return error.message
    return None
