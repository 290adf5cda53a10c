"""What a measurement was made on: written beside every recorded result."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from typing import Any

_PACKAGES = (
    "coda-lang", "numpy", "ml-dtypes", "cupy-cuda13x", "torch", "triton", "nvidia-cutlass", "nvidia-cuda-nvrtc",
    "quack-kernels", "liger-kernel",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """Date (UTC), GPU, driver and package versions; None where there is none."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpu, driver = _smi()
    now = datetime.datetime.now(datetime.UTC)
    return {"date": now.strftime("%Y-%m-%d %H:%M UTC"), "gpu": gpu, "driver": driver, "versions": versions}


def _smi() -> tuple[str | None, str | None]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None, None
    name, _, driver = out.strip().splitlines()[0].partition(",")
    return name.strip(), driver.strip()
