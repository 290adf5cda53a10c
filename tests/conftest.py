"""Tests marked `gpu` need a Hopper GPU and the `[gpu]` extra; elsewhere they are skipped with the reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The random programs and their evaluator serve the tests of other folders too.
sys.path.insert(0, str(Path(__file__).parent / "properties"))

_QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", derandomize=True, max_examples=60, database=None, **_QUIET)
settings.register_profile("dev", max_examples=60, **_QUIET)
settings.register_profile("thorough", max_examples=2000, **_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))  # --hypothesis-profile=… comes after this


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the expected messages of tests/errors")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from coda_lang.backend_cutlass import device

    reason = device.available()
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
