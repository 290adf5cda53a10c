"""Rows and columns that fill no tile, by every kind of tile: what lies beyond them comes into no result.

The rest of such a tile of a or b holds what shared memory held before. Here that is NaN, left on every multiprocessor
and in every stage by whole tiles of the launch right before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda

pytestmark = pytest.mark.gpu

# Every reduction of tiles, over rows and over columns, and what rows and columns alone decide, stored in each way.
TEXT = """
kernel edges<M, {columns}, K{axis}>(
    a: bf16[{a}], b: bf16[{b}], c: bf16[M, N], s: f32[M], i: i32[M], inout added: f32[M, N]{table},
) -> (
    d: bf16[M, N], half: bf16[M, N/2], picked: f32[M], row_sums: f32[M, tiles(N)], row_top: f32[M, tiles(N)],
    row_most: f32[M, tiles(N)], lse: f32[M, tiles(N)], count: f32[M, tiles(N)], center: f32[M, tiles(N)],
    squares: f32[M, tiles(N)], sums: f32[tiles(M), N], top: f32[tiles(M), N], most: f32[tiles(M), N/2]{heads},
) {{
    d = ({product} + c) * s{read}
    left, right = pairs(d)
    d <- d
    half <- left + right
    picked <- pick(d, i)
    added +<- d
    row_sums <- tile_sum(d, over=N)
    row_top <- tile_absmax(d, over=N)
    row_most <- tile_max(d, over=N)
    lse <- tile_logsumexp(d, over=N)
    n, mean, m2 = tile_welford(d, over=N)
    count <- n
    center <- mean
    squares <- m2
    sums <- tile_sum(d, over=M)
    top <- tile_absmax(d, over=M)
    most <- tile_max(left, over=M){segments}
}}
"""
ORDERS = {"a @ b.T": ("M, K", "N, K"), "a @ b": ("M, K", "K, N"), "a.T @ b.T": ("K, M", "N, K")}
ROWS = (1, 8, 9, 63, 65, 100, 129, 193, 255, 257, 300, 321, 511)
K, DEEP = 72, 512  # the second fills every stage


@dataclass(frozen=True)
class Kind:
    """Columns to try. With heads: of `head` columns, whose rows of a table are added, or which are summed."""

    columns: tuple[int, ...]
    head: int = 0
    table: bool = False


KINDS = {
    "by TMA": Kind((16, 176, 328)),
    "directly": Kind((2, 322)),
    "in heads": Kind((64, 320, 448), 64, table=True),  # which makes b's rows come in another order
    "in segments": Kind((32, 160, 416), 32),
}
CONFIGS = (
    "64x32,cluster=1x1,pingpong,stages=4",
    "64x32,cluster=4x1,pingpong,stages=3",
    "64x64,cluster=2x1,pingpong,stages=3,epilogue=32",
    "64x96,cluster=1x1,pingpong,stages=4,epilogue=32",
    "128x96,cluster=1x1,pingpong,stages=2,stores=1,loads=1",
    "192x96,cluster=2x1,pingpong,stages=2,stores=1,loads=1",
    "128x128,cluster=1x1,cooperative,stages=2,epilogue=64,stores=1,loads=1",
    "128x128,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=1x2,pingpong,stages=2,epilogue=32,stores=1,loads=1",
    "128x128,cluster=2x1,cooperative,stages=2,epilogue=32,stores=1,loads=1",
    "128x192,cluster=2x1,pingpong,stages=2,epilogue=32,stores=1,loads=1",
)
# Of operands whose memory runs along the tile, 64 at a time; and of more tiles than multiprocessors, one of them ragged
# among whole ones of the same block.
OF_OTHER_ORDERS = ("128x128,cluster=2x1,pingpong", "128x128,cluster=1x2", "128x192")
OF_MANY_TILES = ("64x96", "128x128,cluster=2x1,pingpong", "128x192")
CASES = [(c, "a @ b.T", kind) for c in CONFIGS for kind in KINDS]
CASES += [(c, p, "by TMA") for c in CONFIGS if c.startswith(OF_OTHER_ORDERS) for p in ("a @ b", "a.T @ b.T")]


@pytest.mark.parametrize(("config", "product", "kind"), CASES)
def test_what_fills_no_tile(config: str, product: str, kind: str) -> None:
    kernel, head = kernel_of(product, KINDS[kind]), KINDS[kind].head
    tile_m, tile_n = map(int, config.split(",")[0].split("x"))
    rng = np.random.default_rng(0)
    for n in KINDS[kind].columns:
        spoil = _spoiler(kernel, config, tile_m * 160, n + 4 * tile_n, head)
        many = config.startswith(OF_MANY_TILES) and n == max(KINDS[kind].columns)
        for m in (*ROWS, tile_m * 140 + 9) if many else ROWS:
            given = drawn(rng, m, n, head)
            spoilt = {x: given[x].copy() for x in "ab"}
            spoilt["a"][: (m - 1) // tile_m * tile_m] = np.nan  # of all rows but those of the last tile
            spoilt["b"][: (n - 1) // tile_n * tile_n] = np.nan
            for arguments in (given, given | spoilt):
                plan, added = _plan(kernel, config, arguments, head)
                spoil()
                results = {name: _host(x) for name, x in (plan() | {"added": added}).items()}
                holds(results, arguments, tile_m, tile_n, head)


def kernel_of(product: str, kind: Kind) -> Any:
    a, b = ORDERS[product]
    text = {"columns": "N = H * D" if kind.head else "N", "axis": ", P" if kind.table else ""}
    text |= {"table": ", t: f32[P, D]", "read": " + t[i, ...]"} if kind.table else {"table": "", "read": ""}
    summed = bool(kind.head) and not kind.table
    text |= {"heads": ", heads: f32[M, H]" if summed else ""}
    text |= {"segments": "\n    heads <- segment_sum(d, over=D)" if summed else ""}
    return coda.loads(TEXT.format(product=product, a=a, b=b, **text)).edges


def drawn(rng: np.random.Generator, m: int, n: int, head: int) -> dict[str, Any]:
    """Integers, so that all sums are exact; a and b as rows of the tile."""
    return {
        "a": rng.integers(-2, 3, (m, K)).astype(np.float64),
        "b": rng.integers(-1, 2, (n, K)).astype(np.float64),
        "c": rng.integers(-3, 4, (m, n)),
        "s": rng.integers(1, 3, m),
        "i": rng.integers(0, n, m),
        "t": rng.integers(-2, 3, (n, head)),
    }


def laid_out(kernel: Any, given: dict[str, Any], head: int) -> dict[str, Any]:
    """The arguments of a call but `added`, as they lie in memory, and the heads' length."""
    product = kernel.ir.product
    turned = {"a": product.a_transposed, "b": not product.b_transposed}
    types = {"s": np.float32, "t": np.float32, "i": np.int32}
    found: dict[str, Any] = {}
    for name in {p.name for p in kernel.ir.params} & set(given):
        x = given[name].T if turned.get(name) else given[name]
        found[name] = np.ascontiguousarray(x.astype(types.get(name, ml_dtypes.bfloat16)))
    return found | ({"D": head} if head and "t" not in found else {})


def _spoiler(kernel: Any, config: str, m: int, n: int, head: int) -> Any:
    """A launch that leaves NaN wherever a tile's operands can lie."""
    given = {x: np.full((size, DEEP), np.nan, np.float32) for x, size in (("a", m), ("b", n))}
    given |= {"c": np.zeros((m, n), np.int8), "s": np.zeros(m), "i": np.zeros(m, int), "t": np.zeros((n, head))}
    return _plan(kernel, config, given, head)[0]


def _plan(kernel: Any, config: str, given: dict[str, Any], head: int) -> tuple[Any, Any]:
    cp = pytest.importorskip("cupy")
    arrays = {n: cp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in laid_out(kernel, given, head).items()}
    added = cp.ones(given["c"].shape, cp.float32)
    return kernel.plan(**arrays, added=added, config=config), added


def _host(x: Any) -> np.ndarray:
    import cupy

    return cupy.asnumpy(x).astype(np.float64)


def holds(got: dict[str, np.ndarray], given: dict[str, Any], tile_m: int, tile_n: int, head: int) -> None:
    """What the definitions say: exact, as all numbers are small integers, but for what divides or is no polynomial."""
    d = (given["a"] @ given["b"].T + given["c"]) * given["s"][:, None]
    m, n = d.shape
    if head and "heads" not in got:
        d += np.tile(given["t"][given["i"]], n // head)
    same, near = np.testing.assert_array_equal, np.testing.assert_allclose
    same(got["d"], d.astype(ml_dtypes.bfloat16).astype(float))
    same(got["half"], (d[:, ::2] + d[:, 1::2]).astype(ml_dtypes.bfloat16).astype(float))
    same(got["picked"], d[np.arange(m), given["i"]])
    same(got["added"], d + 1)
    across = [d[:, j : j + tile_n] for j in range(0, n, tile_n)]
    same(got["row_sums"], np.stack([p.sum(1) for p in across], 1))
    same(got["row_top"], np.stack([abs(p).max(1) for p in across], 1))
    same(got["row_most"], np.stack([p.max(1) for p in across], 1))
    near(got["lse"], np.stack([_logsumexp(p) for p in across], 1), rtol=1e-6, atol=1e-5)
    same(got["count"], np.stack([np.full(m, p.shape[1]) for p in across], 1))
    near(got["center"], np.stack([p.mean(1) for p in across], 1), rtol=1e-5, atol=2e-3)
    near(got["squares"], np.stack([p.var(1) * p.shape[1] for p in across], 1), rtol=1e-4, atol=2e-3)
    if "heads" in got:
        same(got["heads"], d.reshape(m, -1, head).sum(2))
    along = [d[i : i + tile_m] for i in range(0, m, tile_m)]
    same(got["sums"], [p.sum(0) for p in along])
    same(got["top"], [abs(p).max(0) for p in along])
    same(got["most"], [p[:, ::2].max(0) for p in along])


def _logsumexp(x: np.ndarray) -> np.ndarray:
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1))
