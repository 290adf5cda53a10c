"""How long a schedule would take: a model that orders candidates before any of them is compiled.

A block walks tiles one after the other, so the time is that of the block with most of them:

    time     = waves · (steps · step + epilogue) + fetch + power      but at least bytes / bandwidth
    waves    = ⌈clusters of tiles / clusters at once⌉                 quantisation: the last wave counts in full
    step     = the longest of mma, latency / (stages − 1) and arrival, for 64 along K
    mma      = 2·tile_m·tile_n·64 / (flops / multiprocessors)         at a rate of the tile's own: 0.98 to 1.025 of it
    latency  = 0.87 µs · (1 + 0.2·(size − 1))                         of a cluster of that size: its blocks wait for all
    arrival  = (tile_m / cluster_n + tile_n / cluster_m)·64·bytes / (L2 bandwidth / multiprocessors)
    epilogue = tile_m·tile_n·b·moved / (bandwidth / multiprocessors) + drain
    fetch    = 1.4 · ((rows + columns that the tiles in flight span)·K·bytes·waves − reused) / bandwidth
    power    = 0.037 ps · weight · rows · columns

Clusters of 4 leave some multiprocessors idle: each lies within a GPC. The blocks of a cluster load what they share
once, which gains tiles of 64 rows or columns nothing. An epilogue's instructions cost the same whether another tile's
mainloop hides them or not: they take power, and the card has no more to give. Its bytes are not hidden as one would
think: b = 0.5 in a cooperative schedule, which waits for them, and 0.3 in a pingpong one; 1.18 and 0.05 µs go by while
the tensor cores drain and fill, and 0.25 µs in a cooperative schedule for each part whose loads have one buffer.
Nothing hides a block's last tile, whatever the schedule: b = 1, as all blocks move their bytes at once, 1.18 µs, 0.1 µs
for each part and 0.25 µs more if its loads have one buffer; in a pingpong schedule half of the threads do it, and its
instructions' time counts once more.
Straight-line code that the instruction cache does not hold costs 4.7 cycles more for each instruction. `fetch` is the
reuse in L2: the tiles in flight form a block of `swizzle` rows of clusters (of columns, if `raster` is m), and what
they span is fetched in each wave, but for what the next wave finds of the rows (or columns) that it shares with the
last one: their part of 8.4 MB. Pairs of blocks along the rows made no difference to a single one, pairs of small tiles
or along the columns and larger clusters take 4 % more.

The constants are a robust least-squares fit of logarithms, mostly within each call, to 1173 times of 72 calls: what
tuning tried in benchmarks/results/2026-11-30-h200-tried.json, up to 8192 rows, calls of few rows in
2026-11-29-h200-few-rows.json, and a layer's products in 2026-11-30-h200-layer-race.json, which alone were timed with K
walked in serpentines. The latency, the last tile's epilogue and the loads of small tiles came later, by hand, from 75
calls of 256 to 12288 rows in 2026-11-30-h200-rows-race.json. tests/tuning/test_model.py says how well the model orders
what was measured. `serpentine` makes no difference to it, and `rolled` no other. Below 1024 rows the times are too
long, by a fifth in the middle and two thirds at most, but too short by two fifths in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.problem import Problem

DEPTH = 64  # of a step of the mainloop, along K


@dataclass(frozen=True)
class Machine:
    """What a GPU does, as fitted: `flops` of a mainloop that waits for nothing, `bandwidth` of its memory and
    `l2_bandwidth` in bytes a second, `clock` in Hz, `latency` of a load in seconds. Clusters may use `gpc`
    multiprocessors of a GPC.
    """

    multiprocessors: int = 132
    flops: float = 1050e12
    bandwidth: float = 4.8e12
    l2_bandwidth: float = 16.3e12
    clock: float = 1.7e9
    latency: float = 0.87e-6
    gpc: int = 16

    def clusters(self, size: int) -> int:
        """How many clusters of so many blocks run at once. Multiprocessors come in pairs, GPCs of 16 or 18."""
        if size <= 2:
            return self.multiprocessors // size
        return max(1, self.multiprocessors // self.gpc * (self.gpc // size))


H200 = Machine()

_RATE_192 = 1.025
_RATE = {(128, 128): 1.005, (192, 128): 1.006, (256, 128): 0.979, (256, 192): 0.991}
_SIZE = 0.2
_FETCH, _REUSED = 1.4, 8.4e6
_POWER = 0.037e-12
_CODE, _OVERHEAD, _MISSED = 8000, 12.0, 4.7  # instructions that are cached; more than the weight of an element; cycles
_WIDE = 1.04
_SINGLE = 0.25e-6
ENOUGH = 4  # stages of the mainloop that keep the tensor cores fed; of larger tiles, as many as hold as much work


@dataclass(frozen=True)
class _Shown:
    """How much of an epilogue shows: the share of its bytes' time, seconds until the tensor cores are full again,
    seconds for each part, and whether it waits for loads that have one buffer.
    """

    move: float
    drain: float
    part: float
    waits: bool


_SHOWN = {"cooperative": _Shown(0.5, 1.18e-6, 0.0, True), "pingpong": _Shown(0.3, 0.05e-6, 0.0, False)}
_LAST = _Shown(1.0, 1.18e-6, 0.1e-6, True)


@dataclass(frozen=True)
class Predicted:
    """Seconds of one call, and of its parts; `waves` of tiles."""

    seconds: float
    mainloop: float
    epilogue: float
    fetch: float
    power: float
    waves: int


def predict(config: Config, problem: Problem, machine: Machine = H200) -> Predicted:
    """The model's time of a call with that schedule; of an empty call, 0."""
    if not problem.rows * problem.cols:
        return Predicted(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    rows = -(-problem.rows // (config.tile_m * config.cluster_m))
    cols = -(-problem.cols // (config.tile_n * config.cluster_n))
    size = config.cluster_m * config.cluster_n
    at_once = min(machine.clusters(size), rows * cols)
    waves = ceil(rows * cols / at_once)
    mainloop = waves * -(-problem.contracted // DEPTH) * _step(config, problem, machine)
    epilogue = _epilogues(config, problem, machine, waves)
    fetch = _FETCH * _fetched(config, problem, rows, cols, at_once, waves) / machine.bandwidth
    power = _POWER * problem.weight * problem.rows * problem.cols
    total = max(mainloop + epilogue + fetch + power, problem.bytes / machine.bandwidth)
    if config.cluster_n > 1 or size > 2 or (size > 1 and _is_small(config)):
        total *= _WIDE
    return Predicted(total, mainloop, epilogue, fetch, power, waves)


def rank(config: Config, problem: Problem, machine: Machine = H200) -> tuple[float, int]:
    """What schedules are ordered by: of those that the model takes for equal the ones with stages ENOUGH come first."""
    return predict(config, problem, machine).seconds, -min(config.stages, ENOUGH)


def overflows(config: Config, problem: Problem) -> bool:
    """Whether an epilogue in straight-line code is longer than the instruction cache."""
    elements = config.tile_m * config.tile_n / (128 * config.warpgroups)  # of a thread
    return not config.rolled and elements * (problem.weight + _OVERHEAD) > _CODE


def _is_small(config: Config) -> bool:
    return min(config.tile_m, config.tile_n) <= 64


def _step(config: Config, problem: Problem, machine: Machine) -> float:
    rate = machine.flops / machine.multiprocessors
    rate *= _RATE.get((config.tile_m, config.tile_n), _RATE_192 if config.tile_n == 192 else 1.0)
    mma = 2 * config.tile_m * config.tile_n * DEPTH / rate * problem.operand_bytes / 2
    shares = (1, 1) if _is_small(config) else (config.cluster_n, config.cluster_m)
    fetched = config.tile_m / shares[0] + config.tile_n / shares[1]
    arrival = fetched * DEPTH * problem.operand_bytes / (machine.l2_bandwidth / machine.multiprocessors)
    latency = machine.latency * (1 + _SIZE * (config.cluster_m * config.cluster_n - 1))
    return max(mma, latency / (config.stages - 1), arrival)


def _epilogues(config: Config, problem: Problem, machine: Machine, tiles: int) -> float:
    """Of a block's tiles, as far as they show. Nothing hides the last one: all blocks move its bytes at once, and in a
    pingpong schedule half of the threads do it.
    """
    last = _epilogue(config, problem, machine, _LAST)
    if config.schedule == "pingpong":
        last += config.tile_m * config.tile_n * problem.weight / (128 * machine.clock)
    return (tiles - 1) * _epilogue(config, problem, machine, _SHOWN[config.schedule]) + last


def _epilogue(config: Config, problem: Problem, machine: Machine, shown: _Shown) -> float:
    """Of one tile, as far as it shows."""
    elements = config.tile_m * config.tile_n
    seconds = elements * shown.move * problem.moved / (machine.bandwidth / machine.multiprocessors)
    seconds += shown.drain + config.parts * shown.part
    if overflows(config, problem):
        seconds += elements * _MISSED * problem.weight / (128 * machine.clock)
    if shown.waits and config.load_stages == 1 and problem.need.load_bytes:
        seconds += config.parts * _SINGLE
    return seconds


def _fetched(config: Config, problem: Problem, rows: int, cols: int, at_once: int, waves: int) -> float:
    """Bytes of operands that all waves fetch: each what its tiles span, but for what L2 holds of the last one.

    A band is `swizzle` clusters wide; the clusters in flight fill a part of one, or several.
    """
    across, along = (rows, cols) if config.raster == "n" else (cols, rows)
    band = min(config.swizzle, across)
    length = min(at_once / band, along)
    width = min(across, band * max(1.0, at_once / (band * along)))
    tall, wide = (width, length) if config.raster == "n" else (length, width)
    line = max(1, problem.contracted) * problem.operand_bytes
    down, right = tall * config.tile_m * config.cluster_m * line, wide * config.tile_n * config.cluster_n * line
    goes_on = at_once < band * along  # along the same band; else the next wave has the next bands, of the same length
    shared = down if (config.raster == "n") == goes_on else right
    return waves * (down + right) - (waves - 1) * min(shared, _REUSED * shared / (down + right))
