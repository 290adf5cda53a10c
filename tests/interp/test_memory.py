"""The interpreter's memory: strips of rows keep it at a few arrays of the output's size, whatever the epilogue is."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda
from coda_lang.interp import run

PROGRAMS = Path(__file__).parents[2] / "programs"
M, N, K = 2048, 2048, 64


def arguments(program: coda.Program) -> dict[str, Any]:
    """Arguments of a program with one product; what the numbers are matters nothing."""
    lengths = {"M": M, "N": N, "K": K, "P": 16, "H": N // 128, "D": 128}
    given: dict[str, Any] = {}
    for p in program.ir.params:
        if p.default is not None and p.name not in ("bias", "c"):
            continue
        shape = tuple(int(d.coef * lengths[d.axis or ""]) for d in p.dims)
        dtype = p.dtype if isinstance(p.dtype, str) else p.dtype.name
        numpy: Any = {"T": ml_dtypes.bfloat16, "I": np.int32, "f32": np.float32}[dtype]
        given[p.name] = np.ones(shape, numpy)
    if program.name == "qk_norm":
        given["H"] = N // 128
    return given


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("rmsnorm_swiglu", "rmsnorm_swiglu"),
        ("residual_rms", "residual_rms"),
        ("residual_layernorm", "residual_layernorm"),
        ("cross_entropy", "cross_entropy"),
        ("rope", "rope_position"),
        ("linear_act", "linear_gelu"),
        ("qk_norm", "qk_norm"),
        ("swiglu_bwd", "swiglu_bwd"),
        ("cross_entropy_bwd", "cross_entropy_bwd"),
    ],
)
def test_a_call_holds_few_arrays_of_the_outputs_size(file: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 4 f32 arrays of the largest output's size and an f32 copy of each operand, the outputs included."""
    program = coda.load(PROGRAMS / f"{file}.coda")[name]
    given = arguments(program)
    outputs = [o.name for o in program.ir.outputs]
    result = program.interpret(**given, outputs=outputs)
    size = max(x.size for x in result.values())
    del result
    monkeypatch.setattr(run, "WORKERS", 4)  # as on a larger machine
    tracemalloc.start()
    try:
        program.interpret(**given, outputs=outputs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    operands = 4 * (M * K + N * K)
    assert peak <= 4 * (4 * size) + operands


def test_a_large_accumulator_is_held_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (m: f32[M, tiles(N)]) { m <- tile_max(a @ b.T, over=N) }"
    monkeypatch.setattr(run, "BLOCK_ELEMENTS", 1 << 20)
    k = coda.loads(text).k
    a, b = np.ones((M, K), ml_dtypes.bfloat16), np.ones((N, K), ml_dtypes.bfloat16)
    k(a=a[:8], b=b)
    tracemalloc.start()
    try:
        assert (k(a=a, b=b).m == K).all()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * (1 << 20) + 4 * (M * K + N * K) + (1 << 20)
