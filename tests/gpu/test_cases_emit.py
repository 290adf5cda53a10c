"""Every case of the GPU tests becomes a kernel: needs no GPU, so that what only a GPU runs cannot rot unseen."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_cases import Case, all_cases, config_cases, own_programs
from gpu_harness import emitted
from gpu_random import RandomCase, drawn
from test_cases import TAILS

import coda_lang as coda
from coda_lang.errors import BackendError
from programs import MODES


def sources(cases: Sequence[Case | RandomCase]) -> set[str]:
    return {emitted(case).source for case in cases}


def test_every_program_in_every_shape_and_schedule() -> None:
    cases = all_cases()
    assert {(c.file, c.kernel) for c in cases} == set(own_programs())
    kinds = {case.program.ir.kind for case in cases}
    assert kinds == {"kernel", "map", "reduce"}
    assert all(isinstance(case.program, coda.Program) for case in cases)
    assert len(sources(cases)) > len(set(own_programs()))
    assert sources(config_cases()).isdisjoint(sources(cases))


def test_every_tail() -> None:
    assert sources(TAILS)


def test_random_programs() -> None:
    taken = []
    for seed in range(40):
        try:
            drawn(seed)
        except BackendError:
            continue
        taken += [RandomCase(seed, mode) for mode in MODES]
    assert len(taken) >= 36 * len(MODES)
    assert len(sources(taken)) >= len(taken) // len(MODES)
