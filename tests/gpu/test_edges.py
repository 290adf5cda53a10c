"""Rows that fill no tile, by every kind of tile: what lies beyond them comes into no result.

The rest of such a tile of a holds what shared memory held before. Here that is NaN, left by an earlier launch on every
multiprocessor, or by an earlier tile of the same launch.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda

pytestmark = pytest.mark.gpu

# Every reduction along the columns, which go over rows; and what rows alone decide, stored in each way.
TEXT = """
kernel edges<M, N, K>(
    a: bf16[M, K], b: bf16[N, K], c: bf16[M, N], s: f32[M], i: i32[M], inout added: f32[M, N],
) -> (
    d: bf16[M, N], half: bf16[M, N/2], rows: f32[M, tiles(N)], picked: f32[M],
    sums: f32[tiles(M), N], top: f32[tiles(M), N], most: f32[tiles(M), N/2],
) {
    d = (a @ b.T + c) * s
    left, right = pairs(d)
    d <- d
    half <- left + right
    rows <- tile_sum(d, over=N)
    picked <- pick(d, i)
    added +<- d
    sums <- tile_sum(d, over=M)
    top <- tile_absmax(d, over=M)
    most <- tile_max(left, over=M)
}
"""
ROWS = (1, 7, 8, 9, 31, 63, 65, 100, 127, 129, 191, 193, 255, 257, 300, 321, 511)
CONFIGS = (
    "64x32,cluster=1x1,pingpong,stages=4",
    "64x32,cluster=4x1,pingpong,stages=3",
    "64x64,cluster=2x1,pingpong,stages=3,epilogue=32",
    "128x96,cluster=1x1,pingpong,stages=2,stores=1,loads=1",
    "192x96,cluster=2x1,pingpong,stages=2,stores=1,loads=1",
    "128x128,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=1x2,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=2x1,cooperative,stages=2,epilogue=32,stores=1,loads=1",
)
K = 72


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("n", [328, 322], ids=["by TMA", "directly"])
def test_rows_that_fill_no_tile(config: str, n: int) -> None:
    tile = int(config.split("x")[0])
    rng, many = np.random.default_rng(0), tile * 160
    _call(config, {**_drawn(rng, many, n), "a": np.full((many, K), np.nan)})  # on every multiprocessor
    for m in ROWS:
        given = _drawn(rng, m, n)
        _holds(config, given, _call(config, given))
        if m > tile:
            spoilt = {**given, "a": given["a"].astype(float)}
            spoilt["a"][: m // tile * tile] = np.nan  # of all rows but those of the last tile
            _holds(config, spoilt, _call(config, spoilt))


def _drawn(rng: np.random.Generator, m: int, n: int) -> dict[str, Any]:
    return {
        "a": rng.integers(-2, 3, (m, K)),
        "b": rng.integers(-1, 2, (n, K)),
        "c": rng.integers(-3, 4, (m, n)),
        "s": rng.integers(1, 3, m),
        "i": rng.integers(0, n, m),
    }


def _call(config: str, given: dict[str, Any]) -> dict[str, np.ndarray]:
    cp = pytest.importorskip("cupy")
    kernel = coda.loads(TEXT).edges
    types = {"s": np.float32, "i": np.int32}
    arrays = {name: cp.asarray(x.astype(types.get(name, ml_dtypes.bfloat16))) for name, x in given.items()}
    added = cp.ones(given["c"].shape, cp.float32)
    got = kernel.plan(**arrays, added=added, config=config)()
    return {name: cp.asnumpy(x).astype(np.float64) for name, x in {**got, "added": added}.items()}


def _holds(config: str, given: dict[str, Any], got: dict[str, np.ndarray]) -> None:
    """What the definitions say: exact, as all numbers are small integers."""
    tile_m, tile_n = map(int, config.split(",")[0].split("x"))
    with np.errstate(invalid="ignore"):
        d = (given["a"] @ given["b"].T.astype(float) + given["c"]) * given["s"][:, None]
    m, n = d.shape
    rounded = d.astype(ml_dtypes.bfloat16).astype(float)
    same = np.testing.assert_array_equal
    same(got["d"], rounded)
    same(got["half"], (d[:, ::2] + d[:, 1::2]).astype(ml_dtypes.bfloat16).astype(float))
    same(got["rows"], np.stack([d[:, j : j + tile_n].sum(1) for j in range(0, n, tile_n)], 1))
    same(got["picked"], d[np.arange(m), given["i"]])
    same(got["added"], d + 1)
    parts = [d[i : i + tile_m] for i in range(0, m, tile_m)]
    same(got["sums"], [p.sum(0) for p in parts])
    same(got["top"], [abs(p).max(0) for p in parts])
    same(got["most"], [p[:, ::2].max(0) for p in parts])
