"""Rows and columns that fill no tile, by every kind of tile: what lies beyond them comes into no result.

The rest of such a tile of a or b holds what shared memory held before. Here that is NaN, left on every multiprocessor
and in every stage by the launch right before.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda

pytestmark = pytest.mark.gpu

# Every reduction along the columns, which go over rows, and along the rows; and what rows alone decide, stored in each
# way. A table of heads makes b's rows come in another order.
TEXT = """
kernel edges<M, {columns}, K{P}>(
    a: bf16[{a}], b: bf16[{b}], c: bf16[M, N], s: f32[M], i: i32[M], inout added: f32[M, N]{table},
) -> (
    d: bf16[M, N], half: bf16[M, N/2], rows: f32[M, tiles(N)], picked: f32[M], lse: f32[M, tiles(N)],
    sums: f32[tiles(M), N], top: f32[tiles(M), N], most: f32[tiles(M), N/2],
) {{
    d = ({product} + c) * s{read}
    left, right = pairs(d)
    d <- d
    half <- left + right
    rows <- tile_sum(d, over=N)
    lse <- tile_logsumexp(d, over=N)
    picked <- pick(d, i)
    added +<- d
    sums <- tile_sum(d, over=M)
    top <- tile_absmax(d, over=M)
    most <- tile_max(left, over=M)
}}
"""
ROWS_OF = {"a @ b.T": ("M, K", "N, K"), "a @ b": ("M, K", "K, N"), "a.T @ b.T": ("K, M", "N, K")}
ROWS = (1, 8, 9, 63, 65, 100, 129, 193, 255, 257, 300, 321, 511)
COLUMNS = {"by TMA": (16, 176, 328), "directly": (2, 322), "in heads": (64, 320, 448)}
CONFIGS = (
    "64x32,cluster=1x1,pingpong,stages=4",
    "64x32,cluster=4x1,pingpong,stages=3",
    "64x64,cluster=2x1,pingpong,stages=3,epilogue=32",
    "64x96,cluster=1x1,pingpong,stages=4,epilogue=32",
    "128x96,cluster=1x1,pingpong,stages=2,stores=1,loads=1",
    "192x96,cluster=2x1,pingpong,stages=2,stores=1,loads=1",
    "128x128,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=1x2,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=2x1,cooperative,stages=2,epilogue=32,stores=1,loads=1",
    "128x192,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
)
OTHERS = (
    "128x128,cluster=2x1,pingpong",
    "128x128,cluster=1x2",
    "128x192",
)  # for operands of other orders, 64 at a time
K, DEEP, HEAD = 72, 512, 64  # the second fills every stage
CASES = [(c, "a @ b.T", kind) for c in CONFIGS for kind in COLUMNS]
CASES += [(c, p, "by TMA") for c in CONFIGS if c.startswith(OTHERS) for p in ("a @ b", "a.T @ b.T")]


@pytest.mark.parametrize(("config", "product", "kind"), CASES)
def test_what_fills_no_tile(config: str, product: str, kind: str) -> None:
    kernel = _kernel(product, kind == "in heads")
    tile_m, tile_n = map(int, config.split(",")[0].split("x"))
    rng, nan = np.random.default_rng(0), np.nan
    for n in COLUMNS[kind]:
        drawn = _drawn(rng, tile_m * 160, n, DEEP)  # tiles for every multiprocessor
        spoil = _plan(kernel, config, drawn | {"a": drawn["a"] * nan, "b": drawn["b"] * nan})[0]
        for m in ROWS:
            given = _drawn(rng, m, n, K)
            spoilt = {x: given[x].copy() for x in "ab"}
            spoilt["a"][: (m - 1) // tile_m * tile_m] = nan  # of all rows but those of the last tile
            spoilt["b"][: (n - 1) // tile_n * tile_n] = nan
            for arguments in (given, given | spoilt):
                plan, added = _plan(kernel, config, arguments)
                spoil()
                _holds(arguments, tile_m, tile_n, plan() | {"added": added})


def _kernel(product: str, heads: bool) -> Any:
    a, b = ROWS_OF[product]
    columns, P, table, read = ("N = H * D", ", P", ", t: f32[P, D]", " + t[i, ...]") if heads else ("N", "", "", "")
    return coda.loads(TEXT.format(product=product, a=a, b=b, columns=columns, P=P, table=table, read=read)).edges


def _drawn(rng: np.random.Generator, m: int, n: int, k: int) -> dict[str, Any]:
    """Integers, so that all that is summed is exact; a and b as rows of the tile."""
    return {
        "a": rng.integers(-2, 3, (m, k)).astype(np.float64),
        "b": rng.integers(-1, 2, (n, k)).astype(np.float64),
        "c": rng.integers(-3, 4, (m, n)),
        "s": rng.integers(1, 3, m),
        "i": rng.integers(0, n, m),
        "t": rng.integers(-2, 3, (n, HEAD)),
    }


def _plan(kernel: Any, config: str, given: dict[str, Any]) -> tuple[Any, Any]:
    cp = pytest.importorskip("cupy")
    types = {"s": np.float32, "t": np.float32, "i": np.int32}
    product = kernel.ir.product
    turned = {"a": product.a_transposed, "b": not product.b_transposed}
    wanted = {p.name for p in kernel.ir.params}
    arrays = {}
    for name in wanted & set(given):
        x = given[name].T if turned.get(name) else given[name]
        arrays[name] = cp.asarray(np.ascontiguousarray(x.astype(types.get(name, ml_dtypes.bfloat16))))
    added = cp.ones(given["c"].shape, cp.float32)
    return kernel.plan(**arrays, added=added, config=config), added


def _holds(given: dict[str, Any], tile_m: int, tile_n: int, results: dict[str, Any]) -> None:
    """What the definitions say: exact, as all numbers are small integers; but for lse, within f32's rounding."""
    import cupy

    got = {name: cupy.asnumpy(x).astype(np.float64) for name, x in results.items()}
    d = (given["a"] @ given["b"].T + given["c"]) * given["s"][:, None]
    m, n = d.shape
    if n in COLUMNS["in heads"]:
        d += np.tile(given["t"][given["i"]], n // HEAD)
    same = np.testing.assert_array_equal
    same(got["d"], d.astype(ml_dtypes.bfloat16).astype(float))
    same(got["half"], (d[:, ::2] + d[:, 1::2]).astype(ml_dtypes.bfloat16).astype(float))
    across = [d[:, j : j + tile_n] for j in range(0, n, tile_n)]
    same(got["rows"], np.stack([p.sum(1) for p in across], 1))
    lse = np.stack([np.logaddexp.reduce(p, 1) for p in across], 1)
    np.testing.assert_allclose(got["lse"], lse, rtol=1e-6, atol=1e-5)
    same(got["picked"], d[np.arange(m), given["i"]])
    same(got["added"], d + 1)
    parts = [d[i : i + tile_m] for i in range(0, m, tile_m)]
    same(got["sums"], [p.sum(0) for p in parts])
    same(got["top"], [abs(p).max(0) for p in parts])
    same(got["most"], [p[:, ::2].max(0) for p in parts])
