"""The schedule of a call that names none and was not tuned: the fastest by the model of a handful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, lcm

from coda_lang.backend_cutlass.config import WIDTHS, Config, Footprint, deepest, rejection
from coda_lang.backend_cutlass.model import ENOUGH, H200, overflows, predict, rank
from coda_lang.backend_cutlass.problem import Problem, for_tables, held, is_long, weight
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import DType

LARGE = 8192  # rows, columns and depth that are assumed where no call gives them
CLEARLY = 0.995  # of the usual schedule's time is what another has to promise

# The first is the usual one: pingpong hides one tile's epilogue behind the next tile's mainloop, and 32 columns at a
# time leave long epilogues their registers.
USUAL = Config(128, 128, schedule="pingpong", epilogue_n=32)
# 64 columns are whole lines of 128 bytes: 2 to 4 % less time for the residual's forward programs, which move MUCH
# (benchmarks/results/2026-11-30-h200-race.json), as long as the mainloop keeps its stages and a block has more tiles.
ROOMY = Config(128, 128, schedule="pingpong", swizzle=16, raster="m", store_stages=1)
UNSEEN = 0.02  # of its time, which the model takes for nearly that of 32 columns
MUCH = (6, 8)  # bytes for an element, from and to; beyond that registers are short


@dataclass(frozen=True)
class Candidate:
    """A schedule for calls of many tiles, and the epilogues and depths that it is for.

    `held` is what an epilogue may hold beside the accumulators (`Problem.held`): more of it spills in a pingpong one,
    more than a few registers, and in the others the bytes behind it are not hidden. One that moves `moved` bytes for an
    element is worth it all the same, if the mainloop is not SHORT. `most` bounds these bytes, `weight` the
    instructions, `depth` the columns of the operands.
    """

    config: Config
    held: float
    moved: float = inf
    most: float = inf
    weight: float = inf
    depth: int = 0

    def suits(self, problem: Problem) -> bool:
        sums = SHARED_OUT if problem.need.reduce_bytes else 0
        # A cooperative epilogue waits for bytes, not for the rows of tables, which are found once a tile.
        rows = problem.tables if self.config.schedule == "cooperative" else 0.0
        fits = problem.held - rows + sums <= self.held
        fits |= problem.moved >= self.moved and problem.contracted > SHORT
        fits &= problem.moved <= self.most and problem.weight <= self.weight
        return fits and problem.contracted >= self.depth and not overflows(self.config, problem)


SHORT, DEEP = 2048, 8192  # columns of the operands
SHARED_OUT = 11  # registers of sums along columns, which eight lanes share out, beside what `Problem.held` counts
# Others win where the last wave hardly shows, where the epilogue does, or where what the tiles in flight span is more
# than L2 holds: larger tiles fetch less. Of equals the first is taken.
_WALK = 16  # tiles walked together where a cluster is one block: as many as 8 pairs are
WIDE = Config(128, 256, schedule="cooperative", epilogue_n=32, store_stages=1)  # thrifty: also for heads of 256
MANY_TILES = (
    Candidate(Config(128, 192, 1, 1, "pingpong", swizzle=_WALK, store_stages=1), held=45, most=4, weight=15),
    Candidate(Config(128, 192, 1, 1, "pingpong", swizzle=_WALK, epilogue_n=32, store_stages=1), held=70, moved=6),
    Candidate(
        Config(192, 128, 1, 1, "pingpong", swizzle=_WALK, raster="m", epilogue_n=32, store_stages=1), held=70, moved=6
    ),
    Candidate(Config(128, 256, schedule="cooperative"), held=16),
    Candidate(Config(128, 256, schedule="cooperative", store_stages=1), held=16, moved=4, weight=15),
    Candidate(WIDE, held=16, moved=4, most=6),
    Candidate(WIDE, held=100, depth=DEEP),
    Candidate(Config(256, 192, 1, 1, "cooperative", epilogue_n=32, store_stages=1), held=100, depth=DEEP),
)
FEW_TILES = (
    Config(128, 256, schedule="cooperative"),
    WIDE,  # where the first has no room for its stages
    Config(128, 192, schedule="cooperative", epilogue_n=32),
    Config(128, 128, schedule="cooperative", epilogue_n=32),
    Config(192, 96, schedule="pingpong", epilogue_n=32),
    Config(128, 96, schedule="pingpong", epilogue_n=32),
    Config(64, 192, schedule="pingpong", epilogue_n=32),
    Config(64, 128, schedule="pingpong", epilogue_n=32),
    Config(64, 96, schedule="pingpong", epilogue_n=32),
    Config(64, 64, schedule="pingpong", epilogue_n=32),
    Config(64, 32, schedule="pingpong", epilogue_n=32),
)
# With tables: RoPE at 512 rows takes 4.8 % less in parts of 64 columns than of 32, plain products take as much
# (benchmarks/results/2026-11-30-h200-rows-race.json).
OF_TABLES = Config(128, 128, schedule="cooperative")


def default(problem: Problem) -> Config:
    """The schedule for a problem; one that fits no kernel at all if the problem's has none."""
    chosen = _chosen(problem)
    return replace(chosen, rolled=1) if chosen.parts > 1 and is_long(problem.weight, problem.held) else chosen


def _chosen(problem: Problem) -> Config:
    usual = _usual(problem)
    fits = [c for c in _candidates(problem, usual) if rejection(c, problem.need) is None]
    if not fits:
        return _thriftiest(problem)
    fed = [c for c in fits if _fed(c)] or [c for c in fits if c.stages == max(f.stages for f in fits)]
    first, best = fed[0], min(fed, key=lambda c: rank(c, problem))
    least = CLEARLY - UNSEEN if usual is ROOMY else CLEARLY
    return best if predict(best, problem).seconds < least * predict(first, problem).seconds else first


def _thriftiest(problem: Problem) -> Config:
    """What takes least, with a tile that cuts no head if there is one; it may not fit either."""
    least = Config(64, 64, 2, 1, "pingpong", epilogue_n=32, store_stages=1, load_stages=1)
    step = lcm(problem.segment, problem.need.columns)
    wider = (replace(least, tile_n=n) for n in WIDTHS if n >= least.tile_n and n % step == 0)
    found = deepest(next(wider, least), problem.need)
    return found if rejection(found, problem.need) is None else deepest(least, problem.need)


def _fed(config: Config) -> bool:
    waiting = (config.stages - 1) * config.tile_m * config.tile_n
    return config.stages >= ENOUGH or (config.stages > 2 and waiting >= (ENOUGH - 1) * USUAL.tile_m * USUAL.tile_n)


def for_kernel(kernel: Kernel, dtypes: Mapping[str, DType], need: Footprint) -> Config:
    """The schedule for large calls of a kernel with a product."""
    moved = need.load_bytes + need.store_bytes
    asked = Problem(LARGE, LARGE, LARGE, need, moved, weight(kernel), held(kernel, dtypes), tables=for_tables(kernel))
    return default(asked)


def _usual(problem: Problem) -> Config:
    least, most = MUCH
    keeps = deepest(ROOMY, problem.need).stages >= deepest(USUAL, problem.need).stages
    fits = least <= problem.moved <= most and keeps and not problem.need.reduce_bytes
    return ROOMY if fits and _waves(problem) > 1 else USUAL


def _waves(problem: Problem) -> float:
    """Of the usual tiles."""
    return -(-problem.rows // USUAL.tile_m) * -(-problem.cols // USUAL.tile_n) / H200.multiprocessors


def _candidates(problem: Problem, usual: Config) -> Iterator[Config]:
    waves = _waves(problem)
    many = [c.config for c in MANY_TILES if c.suits(problem)]
    few = [*FEW_TILES, OF_TABLES] if problem.tables else [*FEW_TILES]
    if waves > 2:
        few = [c for c in FEW_TILES if c.tile_n < 256]  # which only some epilogues suit where there are many tiles
    tiles = [usual, *(few if waves <= 4 else []), *(many if waves > 2 else [])]
    if problem.segment > 1:  # heads that no tile may cut
        uncut = ([c for c in some if c.tile_n % problem.segment == 0] for some in (tiles, [*many, *FEW_TILES]))
        tiles = next(filter(None, uncut), tiles)
        tiles += [WIDE] if WIDE.tile_n == problem.segment else []
    for tile in tiles:
        rows, cols = -(-problem.rows // tile.tile_m), -(-problem.cols // tile.tile_n)
        # A cluster loads what its blocks share once, and starts later: it pays where each walks several tiles.
        pairs = rows > 1 and rows * cols >= H200.multiprocessors
        placed = tile if pairs else replace(tile, cluster_m=1)
        yield deepest(placed, problem.need)
        if placed.store_stages > 1:
            yield deepest(replace(placed, store_stages=1), problem.need)
        if placed.load_stages > 1 and tile.schedule == "pingpong":  # else the epilogue waits for each of its loads
            yield deepest(replace(placed, store_stages=1, load_stages=1), problem.need)
