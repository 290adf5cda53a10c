"""Kernels in one stream see what came before, although each is started before the last one's end (`Emitted.early`)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coda_lang as coda

pytestmark = pytest.mark.gpu

# Each reads what the last one wrote and writes what an earlier one read. All numbers are small integers.
TEXT = """
map next<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x + 1 }
kernel product<M, N, K>(a: bf16[M, K], b: bf16[N, K], y: f32[M, N]) -> (z: f32[M, N]) { z <- a @ b.T + y }
reduce total<M, N>(z: f32[M, N]) -> (s: f32[M]) { s <- sum(z, over=N) }
"Those above their row's mean are turned: 0 to 1 and 1 to 0."
map turn<M, N>(z: f32[M, N], s: f32[M], y: f32[M, N]) -> (x: f32[M, N]) {
    x <- select(z * N > s, 2 - y, y - 1)
}
"""


@pytest.mark.parametrize(("m", "n", "steps"), [(3, 64, 400), (700, 512, 200), (4100, 2048, 30)])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_long_chain_of_kernels(m: int, n: int, steps: int, captured: bool, foreign: bool) -> None:
    cp = pytest.importorskip("cupy")
    k, rng = 64, np.random.default_rng(0)
    a, b, x = (rng.integers(0, 2, shape) for shape in ((m, k), (n, k), (m, n)))
    x_gpu, plans = _chain(cp, a, b, x)
    if foreign:
        plans = _among_others(cp, *plans)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for plan in plans:
            plan()  # loads what it needs
        x_gpu[...] = cp.asarray(x, np.float32)
        if captured:
            stream.begin_capture()
        for _ in range(steps if not captured else steps // 10):
            for plan in plans:
                plan()
        if captured:
            graph = stream.end_capture()
            for _ in range(10):
                graph.launch(stream)
        stream.synchronize()
    product = a @ b.T
    for _ in range(steps):
        z = product + x + 1
        x = np.where(z * n > z.sum(1, keepdims=True), 1 - x, x)
    np.testing.assert_array_equal(cp.asnumpy(x_gpu), x)


def _chain(cp: Any, a: Any, b: Any, x: Any) -> tuple[Any, list[Any]]:
    found = coda.loads(TEXT)
    a, b = (cp.asarray(v.astype(ml_dtypes.bfloat16)) for v in (a, b))
    x = cp.asarray(x, np.float32)
    y, z, s = cp.empty_like(x), cp.empty_like(x), cp.empty(len(x), np.float32)
    plans = [
        found.next.plan(x=x, out={"y": y}),
        found.product.plan(a=a, b=b, y=y, out={"z": z}),
        found.total.plan(z=z, out={"s": s}),
        found.turn.plan(z=z, s=s, y=y, out={"x": x}),
    ]
    return x, plans


def _among_others(cp: Any, first: Any, product: Any, total: Any, turn: Any) -> list[Any]:
    """A kernel, a fill and a copy of another library directly ahead of ours that would see it missing."""
    x, z = turn.outputs["x"], product.outputs["z"]
    spare = cp.empty_like(x)
    return [
        lambda: cp.add(x, 1, out=spare),
        lambda: cp.subtract(spare, 1, out=x),
        first,
        lambda: z.data.memset_async(255, z.nbytes),
        product,
        lambda: spare.data.copy_from_async(z.data, z.nbytes),
        lambda: z.data.memset_async(255, z.nbytes),
        lambda: z.data.copy_from_async(spare.data, z.nbytes),
        total,
        turn,
    ]
