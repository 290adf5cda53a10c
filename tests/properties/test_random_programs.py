"""Random programs on the interpreter, held against the evaluator; and the generator held to what it promises."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from evaluator import REFERENCE, Tally, evaluate, gpu_errors
from hypothesis import event, given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.interp import run
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel
from programs import DEPTH, RandomCall, programs, random_call, random_program

SEEDS = st.integers(0, 2**32 - 1)


def load(text: str) -> coda.Program:
    return coda.loads(text).program


def hold(text: str, call: RandomCall, acc: Any = None, tally: Tally | None = None) -> None:
    """Every output of one call is what the evaluator allows."""
    expected = evaluate(text, call.copy(), call.tile, acc)
    got = load(text).interpret(**call.copy(), tile=call.tile, outputs=call.outputs, acc=acc)
    assert set(got.keys()) >= set(call.outputs)
    for name, array in got.items():
        expected[name].check(array, tally)


@given(programs(), SEEDS)
def test_programs(text: str, seed: int) -> None:
    tally = Tally()
    hold(text, random_call(load(text).ir, seed), tally=tally)
    event("something to compare" if tally.total else "nothing to compare")


@pytest.mark.parametrize("mode", ["integers", "normal", "special"])
@pytest.mark.parametrize("flavour", ["exact", "any"])
def test_fixed_seeds(flavour: str, mode: str) -> None:
    """Also how much the comparison fixes: programs without transcendentals are equal to the bit but for sums."""
    tally = Tally()
    for seed in range(40):
        text = random_program(seed, flavour)
        hold(text, random_call(load(text).ir, seed, mode), tally=tally)
    assert tally.total > 10_000
    assert tally.exact / tally.total > (0.8 if flavour == "exact" and mode == "integers" else 0.35)
    assert tally.unknown / tally.total < 0.2


def test_the_errors_stated_for_a_gpu_are_wider() -> None:
    """They hold the interpreter as well, and still fix most of what programs compute."""
    tally = Tally()
    for seed in range(40):
        text = random_program(seed, "any")
        call = random_call(load(text).ir, seed, "normal")
        near, far = (evaluate(text, call.copy(), call.tile, errors=e) for e in (REFERENCE, gpu_errors()))
        for name, array in load(text).interpret(**call.copy(), tile=call.tile).items():
            far[name].check(array, tally)
            assert (far[name].value.error >= near[name].value.error * 0.999).all()
    assert tally.unknown / tally.total < 0.25


@given(programs(kind="kernel"), SEEDS)
@settings(max_examples=settings.default.max_examples // 2)
def test_any_accumulator(text: str, seed: int) -> None:
    """`acc=` stands for the product, NaN, infinities and subnormals included, and the operands may be left out."""
    k = load(text)
    call = random_call(k.ir, seed, "special")
    shape = accumulator_shape(k.ir, call)
    rng = np.random.default_rng(seed)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, 0.5, -1.0, 2.0], np.float32)
    acc = np.where(rng.random(shape) < 0.3, rng.choice(values, shape), rng.standard_normal(shape).astype(np.float32))
    hold(text, call, acc)


def accumulator_shape(kernel: Kernel, call: RandomCall) -> tuple[int, int]:
    assert kernel.product is not None
    a, b = (np.shape(call.arguments[n]) for n in (kernel.product.a, kernel.product.b))
    return a[1 if kernel.product.a_transposed else 0], b[0 if kernel.product.b_transposed else 1]


@given(programs(), SEEDS)
@settings(max_examples=settings.default.max_examples // 4)
def test_rows_in_blocks_and_strips(text: str, seed: int) -> None:
    """More rows than one evaluation takes: partials over rows, what is updated in place, row numbers, vectors."""
    program = load(text)
    call = random_call(program.ir, seed, lengths=(2, 4, 6, 257, 300, 515), tile=(37, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "BLOCK_ELEMENTS", 3000)
        patch.setattr(run, "STRIP_ELEMENTS", 400)
        patch.setattr(run, "WORKERS", 3)
        hold(text, call)


def test_programs_are_as_deep_as_promised() -> None:
    used: Counter[str] = Counter()
    for seed in range(80):
        kernel = load(random_program(seed)).ir
        used.update({v.op for v in kernel.values})
        assert depth(kernel) >= DEPTH, seed  # after folding and merging
    missing = set(OPS) - set(used)
    assert not missing, f"no program has {missing}"


def depth(kernel: Kernel) -> int:
    deep: list[int] = []
    for v in kernel.values:
        deep.append(1 + max((deep[a] for a in v.args), default=0))
    return max(deep)


def test_a_seed_is_a_program() -> None:
    assert random_program(7) == random_program(7)
    assert len({random_program(seed) for seed in range(50)}) == 50
