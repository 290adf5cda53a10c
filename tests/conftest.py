"""Tests marked `gpu` need a Hopper GPU and the `[gpu]` extra; elsewhere they are skipped with the reason."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from coda_lang.backend_cutlass import device

    reason = device.available()
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
