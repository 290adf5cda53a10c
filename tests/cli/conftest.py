"""Tests of the command line mean the same on every machine: those without the mark `gpu` see no GPU."""

from __future__ import annotations

import pytest

from coda_lang.backend_cutlass import device


@pytest.fixture(autouse=True)
def _no_gpu_by_itself(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(device, "available", lambda: "hidden by the tests")
