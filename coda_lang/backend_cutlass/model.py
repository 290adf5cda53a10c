"""How long a schedule would take: a model that orders candidates before any of them is compiled.

A block walks tiles one after the other, so the time is that of the block with most of them:

    time     = waves · (steps · step + epilogue) + fetch              but at least bytes / bandwidth
    waves    = ⌈clusters of tiles / clusters at once⌉                 quantisation: the last wave counts in full
    step     = (mma^6.6 + (arrival / (stages − 1))^6.6)^(1/6.6)       64 along K: whichever is longer, smoothly
    mma      = 2·tile_m·tile_n·64 / (flops / multiprocessors)         1.03 of that rate at 192 columns, 0.98 below
    arrival  = latency + (tile_m / cluster_n + tile_n / cluster_m)·64·bytes / (L2 bandwidth / multiprocessors)
    latency  = 0.58 µs · (1 + 0.43·(size − 1))                        of a cluster of that size: its blocks wait for all
    epilogue = tile_m·tile_n·(a·weight / (128 lanes · clock) + b·moved / (bandwidth / multiprocessors)) + drain
    fetch    = 0.47 · waves · (rows + columns that the tiles in flight span)·K·bytes / bandwidth

Clusters of 4 leave some multiprocessors idle: each lies within a GPC. `arrival` is what one stage takes to come when
all blocks load; the blocks of a cluster load what they share once. An epilogue is not hidden behind another tile's
mainloop as one would think: instructions count a = 0.64 times in a cooperative schedule and 0.30 times in a pingpong
one, bytes b = 0.25 times; 3 and 1.5 µs go by while the tensor cores drain and fill. `fetch` is the reuse in L2: the
tiles in flight form a block of `swizzle` rows of clusters (of columns, if `raster` is m), and what they span is fetched
in each wave. Calls of more than half a millisecond throttle the card.

The constants are a robust least-squares fit, of logarithms, to medians in benchmarks/results: the 282 schedules of 25
calls of 2026-11-29-h200.json, and the 174 of 6 calls of few rows of 2026-11-29-h200-few-rows.json.
tests/tuning/test_model.py says how well the model orders them. `rolled` makes no difference to it: where nothing spills
it costs 1 % on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.problem import Problem

DEPTH = 64  # of a step of the mainloop, along K


@dataclass(frozen=True)
class Machine:
    """What a GPU sustains: `flops` in a product of 16-bit floats, `bandwidth` of its memory and `l2_bandwidth` in
    bytes a second, `clock` in Hz, `latency` of a load in seconds. Clusters may use `gpc` multiprocessors of a GPC.
    """

    multiprocessors: int = 132
    flops: float = 984e12
    bandwidth: float = 4.8e12
    l2_bandwidth: float = 12e12
    clock: float = 1.7e9
    latency: float = 0.58e-6
    gpc: int = 16

    def clusters(self, size: int) -> int:
        """How many clusters of so many blocks run at once. Multiprocessors come in pairs, GPCs of 16 or 18."""
        if size <= 2:
            return self.multiprocessors // size
        return max(1, self.multiprocessors // self.gpc * (self.gpc // size))


H200 = Machine()

_RATE = {64: 0.978, 128: 0.978, 192: 1.03, 256: 1.0}  # by the columns of a tile
_SHARPNESS = 6.6
_SIZE = 0.43
_ISSUE = {"cooperative": 0.64, "pingpong": 0.30}
_MOVE = 0.25
_DRAIN = {"cooperative": 3.0e-6, "pingpong": 1.5e-6}
_FETCH = 0.47
_LONG, _THROTTLE = 0.5e-3, 1.024


@dataclass(frozen=True)
class Predicted:
    """Seconds of one call, and of its parts; `waves` of tiles."""

    seconds: float
    mainloop: float
    epilogue: float
    fetch: float
    waves: int


def predict(config: Config, problem: Problem, machine: Machine = H200) -> Predicted:
    """The model's time of a call with that schedule; of an empty call, 0."""
    if not problem.rows * problem.cols:
        return Predicted(0.0, 0.0, 0.0, 0.0, 0)
    rows = -(-problem.rows // (config.tile_m * config.cluster_m))
    cols = -(-problem.cols // (config.tile_n * config.cluster_n))
    size = config.cluster_m * config.cluster_n
    at_once = min(machine.clusters(size), rows * cols)
    waves = ceil(rows * cols / at_once)
    mainloop = waves * -(-problem.contracted // DEPTH) * _step(config, problem, machine)
    elements = config.tile_m * config.tile_n
    issue = problem.weight / (128 * machine.clock)
    move = problem.moved / (machine.bandwidth / machine.multiprocessors)
    schedule = config.schedule
    epilogue = waves * (elements * (_ISSUE[schedule] * issue + _MOVE * move) + _DRAIN[schedule])
    spanned = _spanned(config, rows, cols, at_once) * problem.contracted * problem.operand_bytes
    fetch = _FETCH * waves * spanned / machine.bandwidth
    total = max(mainloop + epilogue + fetch, problem.bytes / machine.bandwidth)
    return Predicted(total * _THROTTLE if total > _LONG else total, mainloop, epilogue, fetch, waves)


def _step(config: Config, problem: Problem, machine: Machine) -> float:
    rate = machine.flops / machine.multiprocessors * (1.0 if config.tile_m == 256 else _RATE[config.tile_n])
    mma = 2 * config.tile_m * config.tile_n * DEPTH / rate * problem.operand_bytes / 2
    shared = config.tile_m / config.cluster_n + config.tile_n / config.cluster_m
    arrival = shared * DEPTH * problem.operand_bytes / (machine.l2_bandwidth / machine.multiprocessors)
    latency = machine.latency * (1 + _SIZE * (config.cluster_m * config.cluster_n - 1))
    wait = (latency + arrival) / (config.stages - 1)
    return float((mma**_SHARPNESS + wait**_SHARPNESS) ** (1 / _SHARPNESS))


def _spanned(config: Config, rows: int, cols: int, at_once: int) -> float:
    """Rows and columns that the tiles in flight span, in elements: what the scheduler walks in one go.

    A band is `swizzle` clusters wide; the clusters in flight fill a part of one, or several.
    """
    across, along = (rows, cols) if config.raster == "n" else (cols, rows)
    band = min(config.swizzle, across)
    length = min(at_once / band, along)
    width = min(across, band * max(1.0, at_once / (band * along)))
    tall, wide = (width, length) if config.raster == "n" else (length, width)
    return tall * config.tile_m * config.cluster_m + wide * config.tile_n * config.cluster_n
