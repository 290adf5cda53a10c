"""Successive halving: a few rounds with all, more with those that were good, most with the last few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coda_lang.measure.series import medians

ROUNDS, LAST_ROUNDS = (3, 5), 10
FINALISTS = 4
HOPELESS = 1.15  # so much slower than the best of a stage that more rounds cannot help

Measure = Callable[[Sequence[str], int], dict[str, list[float]]]


@dataclass(frozen=True)
class Standing:
    """Where an entrant ended: its median in the last stage that it ran in, that relative to `baseline`'s in the same
    stage, the samples of that stage, and the reason for which it ran in no later one.
    """

    ms: float
    ratio: float
    samples: tuple[float, ...]
    dropped: str | None


def race(names: Sequence[str], baseline: str, measure: Measure) -> dict[str, Standing]:
    """The standings of all entrants, the fastest of the last stage first, then the others by their ratio.

    `measure(names, rounds)` times entrants interleaved; times are compared within a stage only. `baseline` is an
    entrant that stays to the end, whatever its times.
    """
    standings: dict[str, Standing] = {}
    alive = list(dict.fromkeys([baseline, *names]))
    for stage, rounds in enumerate((*ROUNDS, LAST_ROUNDS)):
        samples = measure(alive, rounds)
        times = medians(samples)
        best, order = min(times.values()), sorted(alive, key=lambda name: times[name])
        kept = order if stage == len(ROUNDS) else _kept(order, times)
        for place, name in enumerate(order, start=1):
            reason = None
            if name not in kept and name != baseline:
                rank = f"{place} of {len(order)} after {rounds} rounds"
                reason = f"{times[name] / best - 1:.0%} behind the best, {rank}"
            standings[name] = Standing(times[name], times[name] / times[baseline], tuple(samples[name]), reason)
        alive = list(dict.fromkeys([*kept, baseline]))
    return dict(sorted(standings.items(), key=lambda s: (s[1].dropped is not None, s[1].ratio)))


def _kept(order: Sequence[str], times: dict[str, float]) -> list[str]:
    """The faster half, but at least FINALISTS, without the hopeless."""
    best = times[order[0]]
    few = order[: max(FINALISTS, -(-len(order) // 2))]
    return [name for name in few if times[name] <= HOPELESS * best]
