"""Schedules: what one is, and why one cannot be built for a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Literal

from coda_lang.errors import ArgumentError

WIDTHS = (32, 64, 96, 128, 192, 256)  # columns of a tile: those of a wgmma
SUBTILES = (32, 64)  # columns of a part in which an epilogue walks a tile
MOST_ACCUMULATORS = 192  # registers of a thread, of 240: the rest is for the epilogue
MOST_STAGES = 12  # of the mainloop
SHARED_LIMIT = 232_448  # bytes of shared memory that one block of sm_90 may use


@dataclass(frozen=True)
class Config:
    """One schedule of a kernel with a product.

    A cooperative tile is shared by two warpgroups; in a pingpong schedule each has a tile of its own, and one's
    epilogue hides behind the other's mainloop. `swizzle` cluster rows (or columns, `raster` m) are walked together,
    so that the tiles in flight share operands in L2. `epilogue_n` columns of a tile pass through shared memory at a
    time, in `store_stages` buffers; tiles that are loaded come in `load_stages`. `rolled` 1 loops over these parts of
    a tile, 0 is straight-line code. `serpentine` 1 walks K backwards in every other tile of a block, so that what L2
    still holds of the last one comes first; with 0 a row's bits do not depend on where its tile lies.
    """

    tile_m: int = 128
    tile_n: int = 256
    cluster_m: int = 2
    cluster_n: int = 1
    schedule: Literal["cooperative", "pingpong"] = "cooperative"
    stages: int = 4
    swizzle: int = 8
    raster: Literal["m", "n"] = "n"
    epilogue_n: int = 64
    store_stages: int = 2
    load_stages: int = 2
    rolled: int = 0
    serpentine: int = 1

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups that share one tile."""
        return 2 if self.schedule == "cooperative" else 1

    @property
    def accumulators(self) -> int:
        """Registers of a thread for its share of one tile."""
        return self.tile_m // 64 // self.warpgroups * self.tile_n // 2

    @property
    def parts(self) -> int:
        """How many times a warpgroup goes through the epilogue for one tile."""
        return self.tile_m // 64 // self.warpgroups * (self.tile_n // self.epilogue_n)

    @property
    def threads(self) -> int:
        return 384

    def __str__(self) -> str:
        text = f"{self.tile_m}x{self.tile_n},cluster={self.cluster_m}x{self.cluster_n},{self.schedule}"
        for f in fields(self):
            shown = f.name == "stages" or getattr(self, f.name) != f.default  # unnamed stages would be as many as fit
            if f.name in _KEYS.values() and shown:
                key = next(k for k, v in _KEYS.items() if v == f.name)
                text += f",{key}={getattr(self, f.name)}"
        return text

    @staticmethod
    def parse(text: str, base: Config | None = None) -> Config:
        """A configuration as the command line writes it: ``128x256,cluster=2x1,cooperative,stages=4,swizzle=8``.

        A tile may carry the mainloop's depth, which is 64: ``128x256x64``. What is not named is `base`'s if no tile is
        named, and has its default otherwise.

        Raises:
            ArgumentError: a part that is none of these.
        """
        config = Config() if base is None or names_tile(text) else base
        for part in _parts(text):
            key, _, value = part.partition("=")
            if (tile := _TILE.fullmatch(part)) is not None:
                config = replace(config, tile_m=int(tile[1]), tile_n=int(tile[2]))
            elif part in ("cooperative", "pingpong"):
                config = replace(config, schedule=part)  # type: ignore[arg-type]
            elif key == "cluster" and (cluster := re.fullmatch(r"([0-9])x([0-9])", value)) is not None:
                config = replace(config, cluster_m=int(cluster[1]), cluster_n=int(cluster[2]))
            elif key == "raster" and value in ("m", "n"):
                config = replace(config, raster=value)  # type: ignore[arg-type]
            elif key in _NUMBERS and _NUMBER.fullmatch(value) is not None:
                config = replace(config, **{_KEYS[key]: int(value)})  # type: ignore[arg-type]
            else:
                known = "cooperative|pingpong, cluster=2x1, raster=m|n, " + ", ".join(f"{k}=…" for k in _NUMBERS)
                raise ArgumentError(f"`{part}` is no part of a schedule: write a tile, as in 128x256, and {known}")
        if names_tile(text) and not _names("epilogue", text) and config.tile_n % config.epilogue_n:
            config = replace(config, epilogue_n=min(SUBTILES))
        return config


_TILE = re.compile(r"([0-9]{1,4})x([0-9]{1,4})(x64)?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_KEYS = {
    "stages": "stages",
    "swizzle": "swizzle",
    "raster": "raster",
    "epilogue": "epilogue_n",
    "stores": "store_stages",
    "loads": "load_stages",
    "rolled": "rolled",
    "serpentine": "serpentine",
}
_NUMBERS = [key for key in _KEYS if key != "raster"]


def _parts(text: str) -> list[str]:
    return text.replace(" ", "").split(",")


def _names(key: str, text: str) -> bool:
    return any(part.startswith(f"{key}=") for part in _parts(text))


def names_tile(text: str) -> bool:
    """Whether a configuration's text says its tile; one that does not changes another's."""
    return any(map(_TILE.fullmatch, _parts(text)))


@dataclass(frozen=True)
class Footprint:
    """What a kernel needs of its schedule beside the accumulators, as the emitter counts it.

    Bytes of one row of every tile that is loaded or stored through shared memory, per accumulator column, and bytes
    of shared memory of each reduction along columns, for each warp and accumulator column. A tile's width is
    a multiple of `columns`: 64 if b's memory runs along them, which come 64 at a time then.
    """

    load_bytes: float = 0.0
    store_bytes: float = 0.0
    reduces: tuple[float, ...] = ()
    columns: int = 32

    @property
    def reduce_bytes(self) -> float:
        """Of all reductions along columns."""
        return sum(self.reduces)


# What a kernel may need for `epilogue_bytes` to leave three mainloop stages in the thriftiest configuration: bytes per
# row and column of a subtile of 32 columns with one buffer for stores and two for loads.
BUDGET = 60.0


def cost(need: Footprint) -> float:
    """The part of `BUDGET` that a kernel takes."""
    return 2 * need.load_bytes + need.store_bytes + need.reduce_bytes / 4


def epilogue_bytes(config: Config, need: Footprint) -> int:
    """Shared memory of the epilogue's nodes."""
    rows = 64 * config.warpgroups
    loads = need.load_bytes * config.epilogue_n * rows * config.load_stages
    stores = need.store_bytes * config.epilogue_n * rows * config.store_stages
    of_column = config.tile_n * 4 * config.warpgroups
    # What follows each is aligned to 1024 bytes.
    reduces = sum(-(-each * of_column // 1024) * 1024 for each in need.reduces)
    return int(loads + stores + reduces)


def shared_bytes(config: Config, need: Footprint) -> int:
    """Dynamic shared memory of a kernel: barriers, the epilogue's buffers and the mainloop's stages."""
    mainloop = config.stages * (config.tile_m + config.tile_n) * 128
    return 1024 + max(1, -(-epilogue_bytes(config, need) // 1024)) * 1024 + mainloop


def rejection(config: Config, need: Footprint = Footprint()) -> str | None:
    """Why a configuration cannot be built for a kernel; None if it can."""
    rows = 64 * config.warpgroups
    if config.tile_m % rows or config.tile_m <= 0:
        return f"tile_m = {config.tile_m}: a {config.schedule} tile has a multiple of {rows} rows"
    if config.tile_n not in WIDTHS:
        widths = f"{', '.join(map(str, WIDTHS[:-1]))} or {WIDTHS[-1]}"
        return f"tile_n = {config.tile_n}: wgmma tiles here are {widths} columns wide"
    if config.tile_n % need.columns:
        return (
            f"tile_n = {config.tile_n}: an operand whose memory runs along the columns comes {need.columns} at a time"
        )
    if config.accumulators > MOST_ACCUMULATORS:
        most = f"at most {MOST_ACCUMULATORS} leave room for an epilogue"
        return f"{config.accumulators} accumulator registers a thread: {most}"
    if (
        config.cluster_m not in (1, 2, 4)
        or config.cluster_n not in (1, 2, 4)
        or config.cluster_m * config.cluster_n > 8
    ):
        return f"a cluster of {config.cluster_m}x{config.cluster_n}: 1, 2 or 4 along an axis, 8 blocks at most"
    if config.epilogue_n not in SUBTILES:
        return f"epilogue = {config.epilogue_n}: 32 or 64 columns at a time"
    if config.tile_n % config.epilogue_n:
        return f"epilogue = {config.epilogue_n}: a tile of {config.tile_n} columns comes 32 at a time"
    if (
        not (2 <= config.stages <= MOST_STAGES)
        or not (1 <= config.store_stages <= 8)
        or not (1 <= config.load_stages <= 8)
    ):
        return f"2 to {MOST_STAGES} mainloop stages, 1 to 8 of each kind in the epilogue"
    if config.rolled not in (0, 1) or config.serpentine not in (0, 1):
        return "rolled and serpentine are 0 or 1"
    if not 1 <= config.swizzle <= 65_536:
        return "swizzle counts the cluster rows walked together: 1 to 65536"
    total = shared_bytes(config, need)
    if total > SHARED_LIMIT:
        return f"{total} bytes of shared memory, {SHARED_LIMIT} at most"
    return None


def deepest(config: Config, need: Footprint) -> Config:
    """The configuration with as many mainloop stages as shared memory holds, 12 at most."""
    for stages in range(MOST_STAGES, 1, -1):
        tried = replace(config, stages=stages)
        if rejection(tried, need) is None:
            return tried
    return replace(config, stages=2)


def asked(config: Config | str, need: Footprint, base: Config | None = None) -> Config:
    """The configuration that a caller names, of a `Config` or its text; a text without stages has the most that fit.

    A text without a tile changes `base`, the schedule that the call would get.

    Raises:
        ArgumentError: it is no configuration, or cannot be built for a kernel with this footprint.
    """
    chosen = Config.parse(config, base) if isinstance(config, str) else config
    unnamed = isinstance(config, str) and not _names("stages", config)
    if unnamed:
        chosen = deepest(chosen, need)
    reason = rejection(chosen, need)
    if reason is None:
        return chosen
    most = deepest(chosen, need)
    if shared_bytes(chosen, need) > SHARED_LIMIT and unnamed:
        reason += ", even with 2 stages"
    elif rejection(most, need) is None:
        reason += f"; at most stages={most.stages} fit"
    name = str(chosen).replace(f",stages={chosen.stages}", "") if unnamed else str(chosen)
    raise ArgumentError(f"the schedule {name} does not fit: {reason}")
