"""Compiles what the collected cases need, in parallel, before the first runs; records what passed.

Under pytest-xdist each worker compiles what its own cases need, when they need it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from coda_lang.backend_cutlass import device
from coda_lang.errors import BackendError

_passed: dict[str, Any] = {}
_failed: dict[str, str] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    specs = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    wanted = [params["case"] for params in specs if "case" in params]
    if not wanted or session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    if device.available() is not None:
        return
    from gpu_harness import emitted

    from coda_lang.backend_cutlass.pool import compile_many

    units = {}
    for case in wanted:
        try:
            unit = emitted(case)
        except BackendError:
            continue  # the case itself will tell
        units[unit.source] = unit
    start = time.perf_counter()
    compile_many(list(units.values()))
    print(f"\ncompiled {len(units)} kernels in {time.perf_counter() - start:.0f} s")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" or "gpu" not in report.keywords:
        return
    if report.passed:
        _passed[report.nodeid] = dict(report.user_properties)
    elif report.failed:
        _failed[report.nodeid] = str(report.longrepr)[-600:]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CODA_GPU_RECORD=FILE: what ran, where, and with what."""
    path = os.environ.get("CODA_GPU_RECORD")
    if path and (_passed or _failed) and not hasattr(session.config, "workerinput"):
        from coda_lang.environment import describe

        Path(path).write_text(json.dumps({**describe(), "passed": _passed, "failed": _failed}, indent=1))
