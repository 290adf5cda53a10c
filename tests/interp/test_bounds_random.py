"""Random programs: the interpreter keeps the bounds of the error analysis, which say much and hold nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from comparing import Compared
from hypothesis import given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.interp.bounds import UNIT_ROUNDOFF, Analysis
from programs import MODES, RandomCall, programs, random_call, random_program

SEEDS = st.integers(0, 2**32 - 1)


def called(text: str, seed: int, mode: str | None = None) -> Compared:
    program = coda.loads(text).program
    call: RandomCall = random_call(program.ir, seed, mode)
    return Compared.call(program, call.arguments, call.tile, call.outputs)


def hold(call: Compared) -> None:
    for gpu in (True, False):
        assert call.wrong(call.results, gpu) == {}


@given(programs(), SEEDS, st.sampled_from(MODES))
def test_programs(text: str, seed: int, mode: str) -> None:
    hold(called(text, seed, mode))


@given(programs(kind="kernel"), SEEDS)
@settings(max_examples=settings.default.max_examples // 2)
def test_any_accumulator(text: str, seed: int) -> None:
    """The operands may be left out then, as in a call of the interpreter."""
    program = coda.loads(text).program
    call = random_call(program.ir, seed, "special")
    p = program.ir.product
    assert p is not None
    a, b = (np.shape(call.arguments.pop(n)) for n in (p.a, p.b))
    rng = np.random.default_rng(seed)
    shape = a[1 if p.a_transposed else 0], b[0 if p.b_transposed else 1]
    strange = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, 0.5, -1.0], np.float32)
    acc = np.where(rng.random(shape) < 0.3, rng.choice(strange, shape), rng.standard_normal(shape).astype(np.float32))
    arguments = call.arguments | lengths_of_others(program, call, acc.shape)
    hold(Compared.call(program, arguments, call.tile, call.outputs, acc))


def lengths_of_others(program: coda.Program, call: RandomCall, shape: tuple[int, int]) -> dict[str, int]:
    """Axes that only the operands had, but for those of the accumulator."""
    ir = program.ir
    tile = {d.axis for d in (ir.rows, ir.cols)}
    have = {d.axis for p in ir.params if p.name in call.arguments for d in p.dims} | set(call.arguments)
    split = {d.axis for s in ir.splits for d in (s.inner, s.outer)}
    return {a: 3 for a in ir.axes if a not in have | tile | split}


# What they meet: an intermediate that overflows and is then multiplied by 0; gathers at negative indices; squares that
# underflow under `tile_welford`; an `inout` that is not known before it is narrowed.
@pytest.mark.parametrize(
    ("seed", "mode"),
    [
        (5591, "special"),
        (6774, "normal"),
        (7887, "integers"),
        (100064, "special"),
        (900334, "special"),
        (3000605, "special"),
    ],
)
def test_fixed_seeds(seed: int, mode: str) -> None:
    hold(called(random_program(seed), seed, mode))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_moved_by_a_few_bounds_is_wrong(mode: str) -> None:
    claimed = total = 0
    for seed in range(60):
        call = called(random_program(seed), seed, mode)
        claims = call.claims(gpu=True)
        counts = {n: int(c.sum()) for n, c in claims.items()}
        assert call.wrong(call.moved(gpu=True), gpu=True) == {n: c for n, c in counts.items() if c}, seed
        claimed, total = claimed + sum(counts.values()), total + sum(c.size for c in claims.values())
    assert claimed > 0.9 * total


def test_bounds_are_small() -> None:
    """Of normal data, nine in ten are within a few roundings of the store: 1 + |value| is the scale of a program."""
    units = []
    for seed in range(60):
        call = called(random_program(seed), seed, "normal")
        analysis = Analysis(call.kernel, call.arguments, tile=call.tile)
        for o in call.kernel.outputs:
            dtype = analysis.binding.dtype(o).name
            out = analysis.output(o.name)
            if dtype in UNIT_ROUNDOFF:
                scale = UNIT_ROUNDOFF[dtype] * (1 + np.abs(out.value))
                units.append((out.error / scale)[np.isfinite(out.value)])
    assert np.percentile(np.concatenate(units), 90) < 10


def test_a_zero_of_unknown_sign_bounds_nothing_that_divides_by_it() -> None:
    """ndtr(0) is a half within some units on a GPU: what is left of it rounds to a zero of either sign."""
    text = """map f<M, N>(x: f32[M, N]) -> (z: f8e5m2[M, N], y: f32[M, N]) {
        z = round<f8e5m2>(ndtr(x) - 0.5)
        z <- z
        y <- 1.0 / z
    }"""
    program = coda.loads(text).f
    call = Compared.call(program, {"x": np.zeros((1, 2), np.float32)}, (64, 64), ["z", "y"])
    other = {"z": -np.zeros((1, 2), call.results["z"].dtype), "y": np.full((1, 2), -np.inf, np.float32)}
    assert call.wrong(other, True) == {}
    assert set(call.wrong({"z": other["z"] + 1, "y": call.results["y"]}, True)) == {"z"}
