"""`coda-run explain FILE [KERNEL]`: how a call would run on the GPU. Nothing is compiled and no array is made."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass import model, tensormap
from coda_lang.backend_cutlass.abi import Emitted, TensorMap, grid, misfit, output_key
from coda_lang.backend_cutlass.config import SHARED_LIMIT, Config, Footprint, epilogue_bytes, shared_bytes
from coda_lang.backend_cutlass.emit import footprint, head_step
from coda_lang.backend_cutlass.model import predict, rank
from coda_lang.backend_cutlass.problem import problem
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.shapes import grid_of, has_heads_columns
from coda_lang.backend_cutlass.space import Rejected, ordered
from coda_lang.backend_cutlass.staging import Needs
from coda_lang.binding import Binding
from coda_lang.call import Call, Caller
from coda_lang.cli import form, terminal, units
from coda_lang.cli.summary import shape
from coda_lang.cli.table import Column, table
from coda_lang.cost import H200, cost, roofline
from coda_lang.data import DEFAULT_TILE
from coda_lang.errors import ArgumentError
from coda_lang.ir.axes import Grid
from coda_lang.ir.program import Kernel, Output, Param
from coda_lang.ir.types import Dim
from coda_lang.measure.described import described_array, title


def run(options: argparse.Namespace) -> int:
    program = form.program(options.subject, options.kernel, options.config)
    call = form.call(program, options)
    gpu = GpuProgram(Caller(program.ir))
    config = gpu.config(call, options.config)
    emitted = gpu.emit(call, config)
    view = _View(call, config, emitted)
    reason = misfit(emitted, view.length)
    if reason is not None:
        raise ArgumentError(f"{program.name}: {reason}")
    print(f"{terminal.paint(program.name, 'bold')}  {title(call)}\n")
    for name, text in _facts(view, options.config is not None):
        print(f"{name:<14} {text}")
    print(f"\n{_tensors(view)}")
    if config is not None:
        print(f"\n{_schedules(view)}")
    return 0


@dataclass(frozen=True)
class _View:
    """A call and what the emitter made of it."""

    call: Call[Kernel]
    config: Config | None
    emitted: Emitted

    @property
    def binding(self) -> Binding:
        return self.call.binding

    @property
    def tile(self) -> tuple[int, int]:
        return self.emitted.tile or DEFAULT_TILE

    @property
    def need(self) -> Footprint:
        return footprint(self.call.kernel, self.binding.dtypes, self.emitted.direct)

    @property
    def operand_bits(self) -> int:
        product = self.call.kernel.product
        return 16 if product is None else self.binding.dtype(self.call.kernel.param(product.a)).bits

    def length(self, dim: Dim) -> int:
        return self.binding.length(dim, self.tile)


# -- facts -------------------------------------------------------------------------------------------------------------


def _facts(view: _View, asked: bool) -> Iterator[tuple[str, str]]:
    emitted, config = view.emitted, view.config
    if config is not None:
        yield "schedule", f"{config} ({'as asked' if asked else 'the default for this shape'})"
    yield "tiles", _tiles(view)
    yield "threads", f"{emitted.threads} a block"
    yield "shared memory", _shared(view)
    work, peak = cost(view.binding, view.tile), H200
    product = f"{units.scaled(work.flops)}FLOP in the product, " if view.config is not None else ""
    yield "arithmetic", f"{product}{units.scaled(work.operations).strip()} element operations"
    read, written = sum(work.reads.values()), sum(work.writes.values())
    yield "traffic", f"{units.size(read)} read and {units.size(written)} written, if each array is moved once"
    product_seconds, traffic_seconds = roofline(work, view.operand_bits)
    least = f"{units.seconds(max(product_seconds, traffic_seconds))} on an {peak.name}"
    if view.config is not None:
        least += (
            f": the product {units.seconds(product_seconds)}, beside it the traffic {units.seconds(traffic_seconds)}"
        )
    yield "least time", least
    flops = peak.flops * 16 / view.operand_bits
    yield "", f"(by its datasheet: {flops / 1e12:.0f} TFLOP/s of dense products, {peak.bandwidth / 1e12:.1f} TB/s)"


def _tiles(view: _View) -> str:
    emitted = view.emitted
    blocks = math.prod(grid(emitted, view.length, H200.multiprocessors))
    if emitted.tile is None:
        return f"none; {blocks} blocks of {emitted.threads} threads for the outputs"
    rows, cols = (-(-view.length(dim) // per) for dim, per in emitted.blocks)
    text = f"{rows} × {cols} = {rows * cols} of {emitted.tile[0]}x{emitted.tile[1]}"
    if not emitted.persistent:
        return f"{text}, a block each"
    if not rows * cols:
        return f"{text}: nothing is launched"
    return f"{text}: {_waves(rows * cols, *emitted.cluster, rows, cols)}"


def _waves(tiles: int, cluster_m: int, cluster_n: int, rows: int, cols: int) -> str:
    """How often the multiprocessors go round: a cluster takes its tiles together, those beyond the edge too."""
    size = cluster_m * cluster_n
    clusters = -(-rows // cluster_m) * -(-cols // cluster_n)
    at_once = model.H200.clusters(size)
    waves = clusters / at_once
    busy = tiles / (math.ceil(waves) * H200.multiprocessors)
    return f"{waves:.2f} waves on {H200.multiprocessors} multiprocessors, which are {busy:.0%} busy on average"


def _shared(view: _View) -> str:
    total = view.emitted.shared_bytes
    if view.config is None:
        return f"{units.kib(total)} a block" if total else "none that is dynamic"
    parts = "".join(f", {title} {units.kib(size)}" for title, size in _parts(view.config, view.need))
    return f"{units.kib(total)} of {units.kib(SHARED_LIMIT)}{parts}"


def _parts(config: Config, need: Footprint) -> Iterator[tuple[str, int]]:
    stage = shared_bytes(config, need) - shared_bytes(replace(config, stages=config.stages - 1), need)
    loads = epilogue_bytes(config, replace(need, store_bytes=0, reduces=()))
    stores = epilogue_bytes(config, replace(need, load_bytes=0, reduces=()))
    reduces = epilogue_bytes(config, replace(need, load_bytes=0, store_bytes=0))
    yield f"mainloop {config.stages} × {units.kib(stage)} =", config.stages * stage
    if loads:
        yield f"tiles loaded {config.load_stages} × {units.kib(loads // config.load_stages)} =", loads
    if stores:
        yield f"tiles stored {config.store_stages} × {units.kib(stores // config.store_stages)} =", stores
    if reduces:
        yield "reductions along columns", reduces
    yield "barriers and padding", shared_bytes(config, need) - config.stages * stage - loads - stores - reduces


# -- tensors -----------------------------------------------------------------------------------------------------------


def _tensors(view: _View) -> str:
    kernel, needs = view.call.kernel, Needs.of(view.emitted)
    names = frozenset(p.name for p in kernel.params)
    columns = [Column("tensor"), Column("dtype"), Column("shape"), Column("size", right=True), Column("way")]
    rows = []
    for p in kernel.params:
        if p.name in view.call.tensors:
            x = view.call.tensors[p.name]
            rows.append(_tensor(view, needs, p, p.name, x, "updated by" if p.inout else "read by"))
    for o in kernel.outputs:
        x = described_array(view.binding.shape(o, view.tile), view.binding.dtype(o).name)
        rows.append(_tensor(view, needs, o, output_key(names, o.name), x, "written by"))
    return table(columns, rows)


def _tensor(view: _View, needs: Needs, t: Param | Output, key: str, x: ArrayView, verb: str) -> list[str]:
    bytes_ = math.prod(x.shape) * view.binding.dtype(t).bits // 8
    return [t.name, x.dtype, shape(x.shape), units.size(bytes_), f"{verb} {_way(view, needs, t, key, x)}"]


def _way(view: _View, needs: Needs, t: Param | Output, key: str, x: ArrayView) -> str:
    plain = "plain loads and stores" if isinstance(t, Param) and t.inout else "plain loads"
    plain = "plain stores" if isinstance(t, Output) else plain
    copied = needs.misfit(key, x)
    if copied is not None:
        return f"{'TMA' if key in needs.mapped else plain}, from a copy: {copied}"
    if key in needs.mapped:
        return "TMA, in the order of each thread's columns" if _is_spread(view, key) else "TMA"
    if key in view.emitted.direct:
        return f"{plain}: {tensormap.misfit(x)}"
    if any(v.op == "gather" and v.attr == t.name for v in view.call.kernel.values):
        ends = f", whose heads end within {head_step(view.call.kernel)} columns" if _is_cut(view, t) else ""
        return f"{plain} of the rows that an index picks{ends}"
    if any(d.tiled for d in t.dims) and isinstance(t, Output):
        return f"{plain}, one for each tile"
    if not _is_tile_of_floats(view, t):
        return plain
    if view.call.kernel.product is None:
        return f"{plain} of up to 16 bytes"
    return f"{plain}: shared memory has no room for more tiles"


def _is_spread(view: _View, key: str) -> bool:
    """Whether a descriptor brings rows in another order than they lie."""
    maps = [f.source for f in view.emitted.fields if isinstance(f.source, TensorMap)]
    return any(m.tensor == key and m.run > 1 for m in maps)


def _is_cut(view: _View, t: Param | Output) -> bool:
    """Whether a table's columns are followed from head to head."""
    return view.emitted.cut and has_heads_columns(grid_of(view.call.kernel), t.dims)


def _is_tile_of_floats(view: _View, t: Param | Output) -> bool:
    """What TMA moves beside a product, and a map's threads in runs."""
    kernel = view.call.kernel
    if kernel.rows is None or kernel.cols is None or view.binding.dtype(t).kind != "float":
        return False
    return Grid(kernel.rows, kernel.cols).is_tile(t.dims)


# -- schedules ---------------------------------------------------------------------------------------------------------

_SHOWN = ("shared memory", "segments")  # reasons for which a tile of the space is worth a line


def _schedules(view: _View) -> str:
    """The tiles of the space: the schedule that the model thinks fastest with each, or why there is none here."""
    assert view.config is not None
    asked = problem(view.binding, view.need)
    configs, rejected = ordered(asked)
    best: dict[tuple[object, ...], Config] = {}
    for config in configs:
        best.setdefault(_key(config), config)
    best[_key(view.config)] = view.config
    reasons: dict[tuple[object, ...], Rejected] = {}
    for member in rejected:
        if member.kind in _SHOWN:
            reasons.setdefault(_key(member.example), member)
    columns = [Column("--config"), Column("tiles", right=True), Column("by the model", right=True), Column("verdict")]
    rows = []
    for config in sorted(best.values(), key=lambda c: rank(c, asked)):
        verdict = "chosen" if config is view.config else "fits"
        seconds = units.seconds(predict(config, asked).seconds)
        rows.append([str(config), _tile_count(view, config), seconds, verdict])
    for key, member in reasons.items():
        if key not in best:
            x = member.example
            text = f"{x.tile_m}x{x.tile_n},{x.schedule}"
            text += f",epilogue={x.epilogue_n}" if member.kind == "shared memory" else ""
            rows.append([text, _tile_count(view, x), "–", f"does not fit: {member.reason}"])
    return table(columns, rows)


def _tile_count(view: _View, config: Config) -> str:
    (rows, _), (cols, _) = view.emitted.blocks
    return str(-(-view.length(rows) // config.tile_m) * -(-view.length(cols) // config.tile_n))


def _key(config: Config) -> tuple[object, ...]:
    return config.tile_m, config.tile_n, config.schedule, config.epilogue_n
