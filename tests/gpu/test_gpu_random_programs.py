"""Random well-typed programs on the GPU, held against the second evaluator and, to the bit, the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluator import Tally, evaluate
from gpu_harness import GpuRun, assert_same_bits
from gpu_random import GPU, RandomCase, drawn

from coda_lang import arrays
from coda_lang.compare import bit_equal_outputs
from coda_lang.errors import BackendError
from coda_lang.interp.bounds import gamma
from coda_lang.ir.numerics import Array
from coda_lang.ir.program import Kernel
from programs import MODES

PROGRAMS = 200


def test_few_are_refused() -> None:
    refused: dict[int, str] = {}
    for seed in range(PROGRAMS):
        try:
            drawn(seed)
        except BackendError as error:
            refused[seed] = error.message
    assert len(refused) <= PROGRAMS // 10, refused


@pytest.mark.gpu
@pytest.mark.parametrize("case", [RandomCase(s, m) for s in range(PROGRAMS) for m in MODES], ids=str)
def test_random_program(case: RandomCase, record_property: pytest.RecordProperty) -> None:
    try:
        drawn(case.seed)
    except BackendError as error:
        pytest.skip(error.message)
    run = GpuRun(case)
    got = run.results()
    acc = None if run.tap is None else arrays.to_numpy(run.tap)
    tally = hold(case, run.kernel, run.tile, run.arguments, got, acc)
    record_property("elements", [tally.exact, tally.bounded, tally.unknown])


def hold(
    case: RandomCase,
    kernel: Kernel,
    tile: tuple[int, int],
    arguments: dict[str, Any],
    got: dict[str, Array],
    acc: Array | None,
) -> Tally:
    """Check results: the accumulator against the operands, all else against the accumulator."""
    text = drawn(case.seed).text
    if acc is not None:
        hold_accumulator(kernel, arguments, acc, case.exact)
    copies = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
    reference = case.program.interpret(**copies, tile=tile, acc=acc, outputs=case.outputs)
    for name in bit_equal_outputs(kernel):
        assert_same_bits(name, got[name], reference[name], f"\n{text}")
    expected = evaluate(text, arguments, tile, acc, GPU)
    tally = Tally()
    for name, array in got.items():
        try:
            expected[name].check(array, tally)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{text}") from None
    return tally


def hold_accumulator(kernel: Kernel, arguments: dict[str, Any], acc: Array, exact: bool) -> None:
    p = kernel.product
    assert p is not None
    a, b = (arguments[n].astype(np.float64) for n in (p.a, p.b))
    a, b = a.T if p.a_transposed else a, b.T if p.b_transposed else b
    with np.errstate(all="ignore"):
        product, size = a @ b, np.abs(a) @ np.abs(b)
        depth = a.shape[1]
        # Twice the unit, since tensor cores cut where f32 rounds; and they need not keep products below 2^-126.
        bound = gamma(2 * depth) * size + depth * 2.0**-126
        certain = size < 3e38
        wrong = certain & ~(acc == product if exact else np.abs(acc - product) <= bound)
        # A NaN, or an infinity times 0, reaches every sum it is part of.
        lost = np.isnan(a).any(1)[:, None] | np.isnan(b).any(0)[None, :]
        lost |= (np.isinf(a).astype(float) @ (b == 0) + (a == 0).astype(float) @ np.isinf(b)) > 0
        wrong |= lost & ~np.isnan(acc)
    assert not wrong.any(), f"the accumulator at {np.argwhere(wrong)[0]}: {acc[wrong][:4]} for {product[wrong][:4]}"
