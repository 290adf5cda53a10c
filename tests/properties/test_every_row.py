"""A row of the operation table is known everywhere: to CUDA, to the error analysis, and to PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from rows import MAPS, expression

import coda_lang as coda
from coda_lang.backend_cutlass.cuda_ops import CUDA
from coda_lang.backend_cutlass.problem import INSTRUCTIONS
from coda_lang.bench.torch_ops import TORCH
from coda_lang.compare import compare
from coda_lang.ir.ops import OPS, Op

DTYPES = {"F": "f32", "I": "i64", "B": "bool", "N": "f32", "A": "f32"}


def test_each_table_has_each_map() -> None:
    names = {row.name for row in MAPS}
    assert names <= set(CUDA)
    assert names <= set(TORCH)
    assert set(INSTRUCTIONS) <= set(OPS)


@pytest.mark.parametrize("row", MAPS, ids=lambda row: row.name)
def test_the_analysis_has_each_map(row: Op) -> None:
    kinds = [DTYPES[k] for k in row.params]
    result = DTYPES[row.params[-1] if row.result in "NA" else row.result]
    names = [f"x{i}" for i in range(len(kinds))]
    inputs = ", ".join(f"{n}: {k}[M, N]" for n, k in zip(names, kinds, strict=True))
    program = coda.loads(f"map f<M, N>({inputs}) -> (y: {result}[M, N]) {{ y <- {expression(row, names)} }}").f
    rng = np.random.default_rng(0)
    draw = {
        "f32": lambda: rng.uniform(0.5, 2.0, (4, 6)).astype(np.float32),
        "i64": lambda: rng.integers(1, 9, (4, 6)),
        "bool": lambda: rng.random((4, 6)) < 0.5,
    }
    arguments = {n: draw[k]() for n, k in zip(names, kinds, strict=True)}
    results = dict(program.interpret(**arguments).items())
    (compared,) = compare(program.ir, arguments, results, (128, 256))
    assert compared.ok
    assert compared.bound < 1e-3 * np.abs(results["y"].astype(np.float64)).max() + 1e-6
