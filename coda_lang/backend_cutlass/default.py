"""The schedule of a call that names none and was not tuned: the fastest by the model of a handful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from coda_lang.backend_cutlass.config import Config, Footprint, deepest, rejection
from coda_lang.backend_cutlass.model import H200, predict
from coda_lang.backend_cutlass.problem import Problem, held, is_long, weight
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import DType

LARGE = 8192  # rows, columns and depth that are assumed where no call gives them
CLEARLY = 0.98  # of the usual schedule's time is what another has to promise: the model is no better than that
ENOUGH = 4  # stages of the mainloop that keep the tensor cores fed

# Pingpong hides one tile's epilogue behind the next tile's mainloop, and 32 columns at a time leave long epilogues
# their registers: under sustained load nothing beats that where there are tiles enough (benchmarks/results).
MANY = (Config(128, 128, schedule="pingpong"), Config(128, 192, schedule="pingpong", store_stages=1))
FEW = (
    *MANY,
    Config(128, 256, schedule="cooperative"),
    Config(128, 192, schedule="cooperative"),
    Config(128, 128, schedule="cooperative"),
    Config(64, 128, schedule="pingpong"),
    Config(64, 64, schedule="pingpong"),
)


WIDE = 128 * 192  # elements of a warpgroup's tile that leave a thread so many registers to spare:
SPARE = 26


def default(problem: Problem) -> Config:
    """The schedule for a problem; one that fits no kernel at all if the problem's has none."""
    chosen = _chosen(problem)
    parts = chosen.tile_m * chosen.tile_n // (64 * chosen.warpgroups * chosen.epilogue_n)
    return replace(chosen, rolled=1) if parts > 1 and is_long(problem.weight, problem.held) else chosen


def _chosen(problem: Problem) -> Config:
    fits = [c for c in _candidates(problem) if rejection(c, problem.need) is None]
    if not fits:
        return deepest(replace(FEW[-1], epilogue_n=32, store_stages=1, load_stages=1), problem.need)
    fed = [c for c in fits if c.stages >= ENOUGH] or [c for c in fits if c.stages == max(f.stages for f in fits)]
    seconds = {c: predict(c, problem).seconds for c in fed}
    first = next(iter(seconds))
    best = min(seconds, key=lambda c: seconds[c])  # the first of equals
    return best if seconds[best] < CLEARLY * seconds[first] else first


def for_kernel(kernel: Kernel, dtypes: Mapping[str, DType], need: Footprint) -> Config:
    """The schedule for large calls of a kernel with a product."""
    moved = need.load_bytes + need.store_bytes
    return default(Problem(LARGE, LARGE, LARGE, need, moved, weight(kernel), held(kernel, dtypes)))


def _candidates(problem: Problem) -> Iterator[Config]:
    waves = -(-problem.rows // 128) * -(-problem.cols // 128) / H200.multiprocessors
    for tile in MANY if waves > 2 else FEW:
        if tile.tile_m * tile.tile_n // tile.warpgroups == WIDE and problem.held > SPARE:
            continue  # registers would spill
        rows, cols = -(-problem.rows // tile.tile_m), -(-problem.cols // tile.tile_n)
        # A cluster loads what its blocks share once, and starts later: it pays where each walks several tiles.
        pairs = rows > 1 and rows * cols >= H200.multiprocessors
        narrow = replace(tile, cluster_m=2 if pairs else 1, cluster_n=1, epilogue_n=32)
        yield deepest(narrow, problem.need)
        if narrow.store_stages > 1 or narrow.load_stages > 1:
            yield deepest(replace(narrow, store_stages=1), problem.need)
            yield deepest(replace(narrow, store_stages=1, load_stages=1), problem.need)
