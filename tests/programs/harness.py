"""Data, tiles and the comparison that the tests of the programs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import coda_lang as coda
from coda_lang.interp.bounds import Analysis, Array

PROGRAMS = Path(__file__).parents[2] / "programs"
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
DTYPES = {"bf16": BF16, "f16": F16}
SHAPES = [(1, 2, 1), (3, 10, 7), (26, 26, 26), (129, 264, 64)]  # M, N (even, for pairs), K
TILES = [(128, 256), (16, 24)]


@cache
def load(file: str) -> coda.Module:
    return coda.load(PROGRAMS / f"{file}.coda")


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    """Normal data, rounded to `dtype`."""
    return (scale * rng.standard_normal(shape)).astype(np.float32).astype(dtype)


def operands(rng: np.random.Generator, a: tuple[int, int], b: tuple[int, int], dtype: Any, k: int) -> dict[str, Array]:
    """A product's operands, such that the accumulator is about standard normal."""
    return {"a": normal(rng, *a, dtype=dtype), "b": normal(rng, *b, dtype=dtype, scale=k**-0.5)}


def wide(x: Any) -> torch.Tensor:
    """An exact copy in f64."""
    return torch.from_numpy(np.array(x, np.float64))


def by_tile(x: torch.Tensor, width: int, dim: int, reduce: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`reduce` of each tile of `x` along `dim`: [rows, tiles] or [tiles, columns]."""
    return torch.stack([reduce(part) for part in torch.split(x, width, dim)], dim)


def check(
    file: str,
    kernel: str,
    args: Mapping[str, Any],
    reference: Mapping[str, Any],
    exact: Mapping[str, Any] | None = None,
    tile: tuple[int, int] = (128, 256),
    outputs: Sequence[str] | None = None,
) -> coda.Result:
    """Run the interpreter and hold every output to its derived bound.

    Args:
        reference: outputs in exact arithmetic (f64), from the operation's usual definition.
        exact: what rounded arguments stand for; see `bounds`.

    Returns:
        What the interpreter computed, by output name.
    """
    program = load(file)[kernel]
    got = program.interpret(**args, tile=tile, outputs=outputs)
    assert set(got.keys()) == set(reference)
    analysis = Analysis(program.ir, args, {n: np.asarray(x) for n, x in (exact or {}).items()}, tile)
    for name, expected in reference.items():
        bound = analysis.output(name)
        compare(got[name], np.asarray(expected), bound.error, f"{kernel}: {name}")
    return got


def compare(got: Array, expected: Array, bound: Array, what: str) -> None:
    assert got.shape == expected.shape == bound.shape, f"{what}: {got.shape}, {expected.shape}, {bound.shape}"
    have = got.astype(np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, have), np.where(finite, 0, expected), what)
    # The oracle rounds too, to f64: its error is far below one f32 rounding of its largest element.
    oracle = 2.0**-44 * np.abs(expected[finite]).max(initial=0.0)
    error, allowed = np.abs(have - expected)[finite], bound[finite] + oracle
    worst = np.argmax(error / np.maximum(allowed, 1e-300)) if error.size else 0
    ok = error <= allowed
    assert ok.all(), f"{what}: {(~ok).sum()} of {ok.size} outside the bound; worst {error[worst]} > {allowed[worst]}"
