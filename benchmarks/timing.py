"""Times variants against each other on one GPU.

The calls of a series are queued behind a spinning kernel, so that no host time enters; the variants are interleaved
round by round, for the clock follows the card's temperature and power, and only ratios hold.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

ROUNDS, CALLS = 10, 8
SPIN = 6_000_000  # clock cycles: longer than it takes to queue a series


def interleaved(
    variants: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, list[float]]:
    """Milliseconds of one call, by variant and round."""
    for variant in variants.values():
        for _ in range(5):
            variant()
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SPIN)
            start.record()
            for _ in range(calls):
                variants[name]()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) / calls)
    return samples


def ratio_interval(x: Sequence[float], y: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """The ratio of medians, and its 95 % bootstrap interval over rounds."""
    rng = random.Random(0)
    ratios = []
    for _ in range(draws):
        picks = [rng.randrange(len(x)) for _ in x]
        ratios.append(statistics.median(x[i] for i in picks) / statistics.median(y[i] for i in picks))
    ratios.sort()
    return statistics.median(x) / statistics.median(y), ratios[draws // 40], ratios[-draws // 40]
