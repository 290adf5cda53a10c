"""Every program on the GPU against the reference, under the numeric contract."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import Case, all_cases, config_cases
from gpu_harness import GpuRun, check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_program(case: Case, record_property: pytest.RecordProperty) -> None:
    for name, share in check(case).items():
        record_property(name, round(share, 3))


@pytest.mark.parametrize("case", config_cases(), ids=str)
def test_every_schedule_gives_the_same(case: Case, record_property: pytest.RecordProperty) -> None:
    for name, share in check(case).items():
        record_property(name, round(share, 3))


REPEATED = [c for c in all_cases() if c.shape == "ragged" and not c.exact]


@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_fifty_runs_give_the_same_bits(case: Case) -> None:
    run = GpuRun(case)
    if any(p.inout for p in run.kernel.params):
        pytest.skip("each run adds to what the last one left")
    first = {n: x.tobytes() for n, x in run.results().items()}
    for _ in range(49):
        again = run.results()
        assert {n: x.tobytes() for n, x in again.items()} == first
    assert all(np.asarray(x).size >= 0 for x in first)
