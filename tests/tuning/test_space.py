"""The enumeration: nothing is lost, whatever is left out says why, and what is kept can be built and differs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from coda_lang.backend_cutlass.config import MOST_STAGES, SHARED_LIMIT, Config, Footprint, rejection, shared_bytes
from coda_lang.backend_cutlass.default import default
from coda_lang.backend_cutlass.model import ENOUGH, predict
from coda_lang.backend_cutlass.problem import Problem
from coda_lang.backend_cutlass.space import SIZE, Rejected, enumerate_space, ordered, walk

NEEDS = (Footprint(), Footprint(0, 2), Footprint(2, 4), Footprint(4, 8, (8.0,)), Footprint(0, 16))
SHAPES = ((1, 64), (16, 4096), (200, 300), (512, 512), (4096, 4096), (131072, 64))


def problems() -> list[Problem]:
    """Every shape, every need, and the pairs that differ most."""
    first = [(shape, NEEDS[0]) for shape in SHAPES] + [(SHAPES[4], need) for need in NEEDS[1:]]
    return [Problem(*shape, 4096, need) for shape, need in (*first, *product(SHAPES[1:3], NEEDS[3:]))]


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_the_space_is_kept_or_left_out_with_a_reason(problem: Problem) -> None:
    members = list(enumerate_space(problem))
    configs = [m for m in members if isinstance(m, Config)]
    rejected = [m for m in members if isinstance(m, Rejected)]
    assert len(set(configs)) == len(configs)
    assert len(configs) + sum(r.count for r in rejected) == SIZE
    assert all(r.reason and r.what for r in rejected)
    assert configs
    for config in configs:
        assert rejection(config, problem.need) is None
        assert shared_bytes(config, problem.need) <= SHARED_LIMIT
        assert (
            config.stages == MOST_STAGES
            or rejection(replace(config, stages=config.stages + 1), problem.need) is not None
        )


@pytest.mark.parametrize("need", NEEDS, ids=str)
@pytest.mark.parametrize("shape", [(16, 4096), (200, 300), (512, 512), (4096, 4096)])
def test_the_default_is_in_the_space_but_for_its_walk(need: Footprint, shape: tuple[int, int]) -> None:
    problem = Problem(*shape, 4096, need)
    chosen = default(problem)
    configs = [m for m in enumerate_space(problem) if isinstance(m, Config)]
    assert any(replace(c, raster=chosen.raster, swizzle=chosen.swizzle) == chosen for c in configs)


@pytest.mark.parametrize("held", [8.0, 86.0])
@pytest.mark.parametrize("segment", [8, 16, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("rows", [1, 64, 512, 4096])
def test_the_default_cuts_no_head(rows: int, segment: int, held: float) -> None:
    chosen = default(Problem(rows, 64 * segment, 1024, Footprint(0, 2), held=held, segment=segment))
    assert chosen.tile_n % segment == 0
    assert not (chosen.accumulators == 192 and held > 70), "more registers would spill than were measured to pay"
    assert rejection(chosen, Footprint(0, 2)) is None


@pytest.mark.parametrize("depth", [1024, 4096, 8192])
@pytest.mark.parametrize("stored", [0.0, 4.0, 8.0])
@pytest.mark.parametrize("loaded", [0.0, 4.0, 8.0, 12.0])
@pytest.mark.parametrize("columns", [32, 64])
def test_nor_where_the_epilogue_takes_much(loaded: float, stored: float, depth: int, columns: int) -> None:
    need = Footprint(loaded, stored, columns=columns)
    for segment in (64, 96, 128, 192, 256):
        problem = Problem(8192, 64 * segment, depth, need, moved=loaded + stored, held=60.0, segment=segment)
        chosen = default(problem)
        some = any(isinstance(c, Config) for c in enumerate_space(problem))  # and each of them cuts none
        assert rejection(chosen, need) is None
        assert not some or chosen.tile_n % segment == 0


def reasons(problem: Problem) -> dict[str, str]:
    return {m.what: m.reason for m in enumerate_space(problem) if isinstance(m, Rejected)}


def test_reasons() -> None:
    found = reasons(Problem(4096, 4096, 4096, Footprint(4, 8, (8.0,))))
    assert found["256x256,cooperative"] == "256 accumulator registers a thread: at most 192 leave room for an epilogue"
    assert found["64x128,cooperative"].startswith("tile_m = 64: a cooperative tile has a multiple of 128 rows")
    assert any("bytes of shared memory, 232448 at most" in r for r in found.values())
    found = reasons(Problem(4096, 4096, 4096, Footprint(), segment=192))
    assert found["128x128,pingpong"] == "a tile of 128 columns would cut segments of 192"
    assert "128x192,pingpong" not in found
    found = reasons(Problem(16, 4096, 4096, Footprint()))
    assert found["128x128,pingpong"] == "128 rows of which at least half lie past the 16 that there are"
    assert found["64x128,pingpong,cluster=2x1"] == "a cluster reaches past the 1x32 tiles that there are"
    assert any("make no difference" in r for r in found.values())
    assert any(r.startswith("the order of tiles is that of raster=n,swizzle=8") for r in found.values())


def test_kinds() -> None:
    problem = Problem(300, 100, 64, Footprint(2, 8, (8.0,)), segment=32)
    kinds = {m.kind for m in enumerate_space(problem) if isinstance(m, Rejected)}
    assert kinds == {"registers", "shape", "shared memory", "edge", "cluster", "same"}
    (cut,) = [
        m
        for m in enumerate_space(replace(problem, segment=128))
        if isinstance(m, Rejected) and m.what == "64x64,pingpong"
    ]
    assert (cut.kind, cut.reason) == ("segments", "a tile of 64 columns would cut segments of 128")
    assert cut.count == 960


def visited(raster: str, swizzle: int, rows: int, cols: int) -> list[tuple[int, int]]:
    """The order of csrc/coda/scheduler.hpp."""
    minor, major = (rows, cols) if raster == "n" else (cols, rows)
    order = []
    for at in range(rows * cols):
        band, at = divmod(at, swizzle * major)
        width = min(swizzle, minor - band * swizzle)
        along, across = divmod(at, width)
        along = major - 1 - along if band % 2 else along
        across += band * swizzle
        order.append((across, along) if raster == "n" else (along, across))
    return order


@pytest.mark.parametrize(("rows", "cols"), list(product((1, 2, 3, 8, 11), repeat=2)))
def test_walks_of_one_name_are_one_walk(rows: int, cols: int) -> None:
    orders: dict[str, list[tuple[int, int]]] = {}
    for raster, swizzle in product("nm", (1, 2, 4, 8, 16)):
        order = visited(raster, swizzle, rows, cols)
        assert orders.setdefault(walk(raster, swizzle, rows, cols), order) == order
    assert len({tuple(o) for o in orders.values()}) == len(orders)


def test_what_the_model_sees() -> None:
    square = Problem(4096, 4096, 4096, Footprint(0, 2))
    wide, deep = Config(stages=4), Config(128, 128, schedule="pingpong", stages=6)
    assert predict(wide, square).waves == 4  # 512 tiles on 132 multiprocessors
    assert predict(wide, replace(square, rows=4352)).waves == 5  # 544
    assert predict(wide, square).seconds < predict(replace(wide, stages=2), square).seconds
    assert predict(deep, square).seconds < predict(replace(deep, swizzle=1), square).seconds
    heavy = replace(square, weight=40.0, moved=12.0)
    assert predict(wide, heavy).epilogue > 2 * predict(wide, replace(square, weight=10.0)).epilogue
    # Clusters of four: each GPC holds four, so that 32 run at once.
    assert predict(replace(wide, cluster_m=4), square).waves == 4
    assert predict(replace(wide, cluster_m=4), replace(square, rows=33 * 512, cols=256)).waves == 2
    assert predict(replace(wide, cluster_m=4), replace(square, rows=512)).waves == 1
    assert predict(wide, replace(square, rows=0)).seconds == 0
    thin = Problem(16, 16384, 16384, Footprint(0, 2))
    assert predict(Config(64, 64, 1, 1, "pingpong", 8), thin).seconds >= 2 * 16384 * 16384 / 4.8e12


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_way_that_tiles_are_walked_makes_no_difference_where_a_wave_has_all_rows(rows: int) -> None:
    """Each wave has other columns then, and the same rows, in whichever order."""
    flat = Problem(128 * rows, 128 * 132 * 5, 4096, Footprint(0, 2))
    along = Config(128, 128, 1, 1, "pingpong", 6, swizzle=rows, raster="n")
    across = replace(along, swizzle=4, raster="m")
    assert predict(along, flat).fetch == pytest.approx(predict(across, flat).fetch)


def test_of_schedules_that_are_equal_the_first_has_stages_enough() -> None:
    problem = Problem(4096, 4096, 4096, Footprint(2, 4))
    configs, _ = ordered(problem)
    times = [predict(c, problem).seconds for c in configs]
    assert all(
        min(x.stages, ENOUGH) >= min(y.stages, ENOUGH)
        for (x, s), (y, t) in pairwise(zip(configs, times, strict=True))
        if s == t
    )


def test_ordered() -> None:
    problem = Problem(4096, 4096, 4096, Footprint(0, 2))
    configs, rejected = ordered(problem)
    times = [predict(c, problem).seconds for c in configs]
    assert times == sorted(times)
    assert (configs[0].tile_m * configs[0].tile_n) >= 128 * 128  # nothing smaller was near the fastest on an H200
    assert sum(r.count for r in rejected) + len(configs) == SIZE
