"""Which schedules of the space are worth compiling: first one of each shape, then the neighbours of those that won."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coda_lang.backend_cutlass.config import Config


def first(ordered: Sequence[Config], count: int) -> list[Config]:
    """The fastest by the model of each tile, schedule and width of the epilogue, in that order."""
    heads: dict[tuple[object, ...], Config] = {}
    for config in ordered:
        heads.setdefault((config.tile_m, config.tile_n, config.schedule, config.epilogue_n), config)
    return list(heads.values())[:count]


def neighbours(best: Sequence[Config], ordered: Sequence[Config], tried: Iterable[Config], count: int) -> list[Config]:
    """Schedules that differ from one of `best` in one respect, in the model's order; none that was tried.

    Two of each turn are neighbours of the first of `best`.
    """
    known = set(tried)
    near = [[c for c in ordered if c not in known and _apart(c, b) == 1] for b in best]
    found: dict[Config, None] = {}
    while any(near) and len(found) < count:
        for candidates in [*near[:1], *near]:
            if candidates and len(found) < count:
                found.setdefault(candidates.pop(0))
    return list(found)


def _groups(config: Config) -> tuple[tuple[object, ...], ...]:
    """What can be chosen alone. The mainloop's depth is not: it is what the rest leaves room for."""
    return (
        (config.tile_m, config.tile_n, config.schedule),
        (config.cluster_m, config.cluster_n),
        (config.raster, config.swizzle),
        (config.epilogue_n,),
        (config.rolled,),
        (config.store_stages,),
        (config.load_stages,),
        (config.serpentine,),
    )


def _apart(x: Config, y: Config) -> int:
    """In how many respects two schedules of one tile differ; more than there are for another tile."""
    a, b = _groups(x), _groups(y)
    return sum(g != h for g, h in zip(a, b, strict=True)) if a[0] == b[0] else len(a)
