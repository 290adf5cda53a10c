"""How long the first call of a program takes, with an empty cache and with a full one, each in a process of its own.

    python benchmarks/startup.py FILE KERNEL

is that process: it prints one JSON object. Without a GPU it compiles and calls nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "programs"
KERNELS = (
    ("linear", "linear"), ("rmsnorm_swiglu", "rmsnorm_swiglu"), ("cross_entropy", "cross_entropy"),
    ("residual_rms_bwd", "residual_rms_bwd"), ("act_bwd", "gelu_bwd"),
)  # fmt: skip


def cold_and_cached(file: str, kernel: str) -> dict[str, dict[str, Any]]:
    """The seconds of each step, with an empty cache and then with what that left."""
    with tempfile.TemporaryDirectory() as folder:
        return {state: _process(file, kernel, folder) for state in ("cold", "cached")}


def _process(file: str, kernel: str, cache: str) -> dict[str, Any]:
    environment = {**os.environ, "CODA_CACHE_DIR": cache, "CODA_TUNED": "0"}
    command = [sys.executable, __file__, file, kernel]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    steps: dict[str, Any] = json.loads(done.stdout)
    return {**steps, "process_s": time.perf_counter() - start}


def main() -> None:
    file, kernel = sys.argv[1:3]
    steps: dict[str, Any] = {}
    last = time.perf_counter()

    def step(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[name] = now - last
        last = now

    import coda_lang as coda
    from coda_lang.backend_cutlass import device

    step("import_s")
    program = coda.load(PROGRAMS / f"{file}.coda")[kernel]
    step("load_s")
    if device.available() is None:
        from coda_lang.bench.run import _library
        from coda_lang.measure.gpu import GpuStopwatch
        from coda_lang.measure.workload import drawn_on_device

        library = _library()
        given = drawn_on_device(program.ir, library)
        watch = GpuStopwatch(0, library)
        watch.synchronize()
        step("arguments_s")
        program(**given)
        watch.synchronize()
        step("first_call_s")
        program(**given)
        watch.synchronize()
        step("second_call_s")
    else:
        report = program.compile().report
        step("compile_s")
        steps["from_the_cache"] = report.cached
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
