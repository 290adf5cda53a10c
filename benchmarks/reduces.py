"""What the small reduces between a layer's products cost, beside the product whose partials each of them combines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from groups import PROGRAMS

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.series import ROUNDS, Interleaved, medians

TOKENS, TILE, VOCABULARY = 16384, 128, 131072

# A reduce, its partials' name and shape, its numbers, and the rows, columns and depth of the product that leaves them.
Pair = tuple[str, str, tuple[int, int], dict[str, float], tuple[int, int, int]]


def pairs(width: int, mlp: int) -> list[Pair]:
    """Those of a layer for 16384 tokens, and of the head behind it, with as many partials as tiles of 128 leave."""
    rows, down = TOKENS, {"N": width, "eps": 1e-5}
    return [
        ("rstd_from_squares", "sq", (rows, width // TILE), down, (rows, width, width)),
        ("zdz_from_partials", "zdz", (rows, mlp // TILE), {"D": width}, (rows, mlp, width)),
        ("sum_partials_m", "partials", (rows // TILE, width), {}, (rows, width, 2 * mlp)),
        ("lse_from_partials", "lse", (rows, VOCABULARY // TILE), {}, (rows, VOCABULARY, width)),
    ]


def shares(width: int, mlp: int, rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """For each reduce its time and cuBLAS's for the product, interleaved, in milliseconds, and their ratio."""
    import torch

    module = coda.load(PROGRAMS / "reduces.coda")
    for name, partials, shape, numbers, (m, n, k) in pairs(width, mlp):
        program = module[name]
        assert isinstance(program, Program)
        plan = program.plan(**{partials: torch.rand(shape, device="cuda")}, **numbers)
        a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        timed = Interleaved(GpuStopwatch(0, "torch"))
        timed.add("reduce", plan)
        timed.add("product", lambda a=a, b=b, out=out: torch.mm(a, b.T, out=out))  # type: ignore[misc]
        times = medians(timed.run(["reduce", "product"], rounds))
        yield {
            "reduce": name,
            "partials": list(shape),
            "product": [m, n, k],
            "reduce_ms": times["reduce"],
            "product_ms": times["product"],
            "share": times["reduce"] / times["product"],
        }
