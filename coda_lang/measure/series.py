"""Variants timed against each other, round by round, and what the samples say.

A card's clock follows its temperature and power, so only the ratios of what is interleaved in one process hold.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

Call = Callable[[], object]

WARM, CALLS, MOST_CALLS = 3, 8, 64  # the most of calls that the host cannot queue in the time that they take
REST_MS, SERIES_MS = 30.0, 1.0  # before a series, and of the series, if its least calls are shorter: see `Interleaved`
ROUNDS = 10
_SLACK = 1.5  # the host may be slower than when it was timed
_AHEAD = 2.0  # a call that takes the device so much longer than the host never waits for the host


class Stopwatch(Protocol):
    """What times calls; `gpu.GpuStopwatch` does."""

    def series(self, call: Call, count: int, queue_seconds: float) -> float:
        """Milliseconds of one call, from a series of `count`."""

    def queue_seconds(self, call: Call, count: int) -> float:
        """Seconds that the host takes to queue `count` calls."""

    def synchronize(self) -> None:
        """Waits for what was queued."""

    def rest(self, seconds: float) -> None:
        """Leaves the device idle for so long."""


@dataclass
class Variant:
    """A call to time: how many of them settle the card and make a series, and the host's lead before the series."""

    call: Call
    settle: int
    count: int
    queue_seconds: float


class Interleaved:
    """Variants, warmed up once, and timed in turns as often as asked.

    A card at its power limit takes tens of milliseconds to find the clock that a load leaves it, so that what ran
    before would count. Series are therefore either short ones of a rested card (`rest_ms`), or follow `settle_ms` of
    the same calls, which are not timed: then each variant runs at the clock that it sustains alone.
    """

    def __init__(
        self,
        stopwatch: Stopwatch,
        seed: int = 0,
        *,
        rest_ms: float = REST_MS,
        settle_ms: float = 0.0,
        series_ms: float = SERIES_MS,
        calls: int = CALLS,
    ) -> None:
        """`calls` is the least number of them in a series."""
        self._stopwatch, self._calls = stopwatch, calls
        self._rest_ms, self._settle_ms, self._series_ms = rest_ms, settle_ms, series_ms
        self._variants: dict[str, Variant] = {}
        self._random = random.Random(seed)

    @classmethod
    def sustained(cls, stopwatch: Stopwatch) -> Interleaved:
        """Each variant at the clock that it holds alone."""
        return cls(stopwatch, rest_ms=0.0, settle_ms=100.0, series_ms=50.0)

    def add(self, name: str, call: Call) -> None:
        """Warms a variant up and finds the length of its series."""
        for _ in range(WARM):
            call()
        host = self._stopwatch.queue_seconds(call, CALLS) / CALLS
        once = max(self._stopwatch.series(call, CALLS, _SLACK * host * CALLS), 1e-6)
        most = MOST_CALLS if once < _AHEAD * 1e3 * host else ceil((self._settle_ms + self._series_ms) / once)
        settle = min(most, ceil(self._settle_ms / once))
        count = max(self._calls, min(most, ceil(self._series_ms / once)))
        self._variants[name] = Variant(call, settle, count, _SLACK * host * min(count, MOST_CALLS))

    def run(
        self, names: Sequence[str], rounds: int = ROUNDS, progress: Callable[[], None] | None = None
    ) -> dict[str, list[float]]:
        """Milliseconds of one call, by variant and round. In each round each variant comes once, in random order."""
        samples: dict[str, list[float]] = {name: [] for name in names}
        order = list(names)
        for _ in range(rounds):
            self._random.shuffle(order)
            for name in order:
                v = self._variants[name]
                self._stopwatch.rest(self._rest_ms / 1e3)
                if v.settle:
                    self._stopwatch.series(v.call, v.settle, 0.0)
                samples[name].append(self._stopwatch.series(v.call, v.count, v.queue_seconds))
                if progress is not None:
                    progress()
        return samples


def rotated(calls: Sequence[Call]) -> Call:
    """One call after another, each on arrays of its own: together they are larger than the L2 cache."""
    turn = -1

    def call() -> None:
        nonlocal turn
        turn = (turn + 1) % len(calls)
        calls[turn]()

    return call


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(x) for name, x in samples.items()}


def ratio_interval(x: Sequence[float], y: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """The ratio of the medians, and its 95 % bootstrap interval over rounds."""
    generator = random.Random(0)
    ratios = []
    for _ in range(draws):
        picks = [generator.randrange(len(x)) for _ in x]
        ratios.append(statistics.median(x[i] for i in picks) / statistics.median(y[i] for i in picks))
    ratios.sort()
    return statistics.median(x) / statistics.median(y), ratios[draws // 40], ratios[-(draws // 40) - 1]
