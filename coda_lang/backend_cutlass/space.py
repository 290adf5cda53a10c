"""The space of schedules: one enumeration, and for each part of it that is left out, why.

    tile        64, 128, 192 or 256 rows by 32, 64, 96, 128, 192 or 256 columns
    schedule    cooperative, pingpong
    cluster     2x1, 1x2, 1x1, 2x2, 4x1, 1x4 blocks: they share what they load
    epilogue    64 or 32 columns at a time, looped over (`rolled`) or straight-line
    buffers     2 or 1 for tiles that are stored, 2 or 1 for tiles that are loaded
    stages      as many as fit, 12 at most: with fewer, loads only come later
    walk        `swizzle` 8, 4, 2, 1 or 16 rows of clusters at a time, or columns (`raster` m); K in serpentines always

What does not differ from an earlier member in the kernel that it makes is left out as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from coda_lang.backend_cutlass.config import Config, deepest, rejection
from coda_lang.backend_cutlass.model import H200, Machine, rank
from coda_lang.backend_cutlass.problem import Problem

ROWS = (128, 64, 256, 192)
COLUMNS = (256, 128, 192, 64, 96, 32)
SCHEDULES: tuple[Literal["cooperative", "pingpong"], ...] = ("cooperative", "pingpong")
CLUSTERS = ((2, 1), (1, 2), (1, 1), (2, 2), (4, 1), (1, 4))
PARTS = ((64, 0), (32, 0), (64, 1), (32, 1))  # epilogue_n, rolled
BUFFERS = ((2, 2), (1, 2), (2, 1), (1, 1))  # store_stages, load_stages
RASTERS: tuple[Literal["n", "m"], ...] = ("n", "m")
SWIZZLES = (8, 4, 2, 1, 16)

_WALKS = len(RASTERS) * len(SWIZZLES)
_INSIDE = len(PARTS) * len(BUFFERS)
SIZE = len(ROWS) * len(COLUMNS) * len(SCHEDULES) * len(CLUSTERS) * _INSIDE * _WALKS


@dataclass(frozen=True)
class Rejected:
    """A part of the space, one of the `count` schedules in it, and why none of them is tried. `kind` groups reasons."""

    what: str
    example: Config
    kind: str
    reason: str
    count: int


def enumerate_space(problem: Problem) -> Iterator[Config | Rejected]:
    """Every schedule of the space for a call: as a configuration, or in a part that is rejected."""
    for rows, cols, schedule in product(ROWS, COLUMNS, SCHEDULES):
        tile = Config(rows, cols, 1, 1, schedule, 2, epilogue_n=32, store_stages=1, load_stages=1)
        name = f"{rows}x{cols},{schedule}"
        found = _tile_reason(tile, problem)
        if found is not None:
            yield Rejected(name, tile, *found, len(CLUSTERS) * _INSIDE * _WALKS)
            continue
        for cluster_m, cluster_n in CLUSTERS:
            in_cluster = replace(tile, cluster_m=cluster_m, cluster_n=cluster_n)
            found = _cluster_reason(in_cluster, problem)
            if found is not None:
                yield Rejected(f"{name},cluster={cluster_m}x{cluster_n}", in_cluster, *found, _INSIDE * _WALKS)
            else:
                yield from _inside(in_cluster, problem)


def _inside(config: Config, problem: Problem) -> Iterator[Config | Rejected]:
    """The epilogue's ways, its buffers and the walk over the tiles."""
    walks, left_out = _walks(config, problem)
    for (columns, rolled), (stores, loads) in product(PARTS, BUFFERS):
        tried = replace(config, epilogue_n=columns, rolled=rolled, store_stages=stores, load_stages=loads)
        tried = deepest(tried, problem.need)
        found = _part_reason(tried, problem)
        if found is not None:
            yield Rejected(str(tried), tried, *found, _WALKS)
            continue
        yield from (_walking(tried, raster, swizzle) for raster, swizzle in walks)
        if left_out:
            name = str(tried)
            yield from (Rejected(f"{name},{r.what}", tried, r.kind, r.reason, r.count) for r in left_out)


def _walking(c: Config, raster: Literal["n", "m"], swizzle: int) -> Config:
    """As `replace` does, in half the time: there are thousands."""
    head = (c.tile_m, c.tile_n, c.cluster_m, c.cluster_n, c.schedule, c.stages)
    return Config(*head, swizzle, raster, c.epilogue_n, c.store_stages, c.load_stages, c.rolled, c.serpentine)


def _tile_reason(config: Config, problem: Problem) -> tuple[str, str] | None:
    reason = rejection(config, problem.need)
    if reason is not None:
        return _kind(reason), reason
    if config.tile_n % problem.segment:
        return "segments", f"a tile of {config.tile_n} columns would cut segments of {problem.segment}"
    sides = (config.tile_m, problem.rows, min(ROWS), "rows"), (config.tile_n, problem.cols, min(COLUMNS), "columns")
    for extent, length, least, what in sides:
        if extent >= 2 * max(least, length):
            return "edge", f"{extent} {what} of which at least half lie past the {length} that there are"
    return None


def _cluster_reason(config: Config, problem: Problem) -> tuple[str, str] | None:
    rows, cols = -(-problem.rows // config.tile_m), -(-problem.cols // config.tile_n)
    if config.cluster_m > rows or config.cluster_n > cols:
        return "cluster", f"a cluster reaches past the {rows}x{cols} tiles that there are"
    return None


def _part_reason(config: Config, problem: Problem) -> tuple[str, str] | None:
    need = problem.need
    if not need.store_bytes and config.store_stages != 2:
        return "same", "no tile passes through shared memory on its way out: the buffers make no difference"
    if not need.load_bytes and config.load_stages != 2:
        return "same", "no tile is loaded by TMA: the buffers make no difference"
    reason = rejection(config, need)
    if reason is not None:
        return _kind(reason), reason
    if config.rolled and config.parts == 1:
        return "same", "a tile has one part: there is nothing to loop over"
    return None


def _walks(config: Config, problem: Problem) -> tuple[list[tuple[Literal["n", "m"], int]], list[Rejected]]:
    """The walks that visit the clusters in different orders, and those that do not."""
    rows = -(-problem.rows // (config.tile_m * config.cluster_m))
    cols = -(-problem.cols // (config.tile_n * config.cluster_n))
    kept: dict[str, tuple[Literal["n", "m"], int]] = {}
    left_out = []
    for raster, swizzle in product(RASTERS, SWIZZLES):
        order = walk(raster, swizzle, rows, cols)
        if order in kept:
            same = "raster={},swizzle={}".format(*kept[order])
            reason = f"the order of tiles is that of {same}"
            left_out.append(Rejected(f"raster={raster},swizzle={swizzle}", config, "same", reason, 1))
        else:
            kept[order] = raster, swizzle
    return list(kept.values()), left_out


def walk(raster: str, swizzle: int, rows: int, cols: int) -> str:
    """A name for the order in which the scheduler visits a grid of clusters: equal names, equal orders."""
    across = rows if raster == "n" else cols
    band = min(swizzle, across)
    if 1 in (rows, cols):
        return "the only one"
    if band == across:
        return "column by column" if raster == "n" else "row by row"
    return f"{band} {'rows' if raster == 'n' else 'columns'} at a time, to and fro"


def _kind(reason: str) -> str:
    return next((k for k in ("registers", "shared memory") if k in reason), "shape")


def ordered(problem: Problem, machine: Machine = H200) -> tuple[list[Config], list[Rejected]]:
    """The schedules that can be built, those that the model thinks fastest first, and what is left out."""
    configs: list[Config] = []
    rejected: list[Rejected] = []
    for member in enumerate_space(problem):
        if isinstance(member, Rejected):
            rejected.append(member)
        else:
            configs.append(member)
    configs.sort(key=lambda c: rank(c, problem, machine))  # stable: equal ones in the space's order
    return configs, rejected
