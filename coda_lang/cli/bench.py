"""`coda-run bench FILE [KERNEL]`: a call's time beside that of what else does its work."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from coda_lang.backend_cutlass import device
from coda_lang.bench.peers import PEERS, Options
from coda_lang.cli import form, terminal, units
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.progress import Steps
from coda_lang.cli.table import Column, table
from coda_lang.errors import BackendError, did_you_mean
from coda_lang.measure.described import title

if TYPE_CHECKING:
    from coda_lang.bench.rows import Row

NAMES = {
    "cublas": "cuBLAS, the product alone",
    "torch.compile": "torch.compile",
    "quack": "QuACK",
    "liger": "Liger",
}


def run(options: argparse.Namespace) -> int:
    program = form.program(options.file, options.kernel, options.config)
    peers = PEERS if options.peers is None else tuple(options.peers)
    for name in peers:
        if name not in PEERS:
            raise UsageError(f"`{name}` is nobody to measure beside", did_you_mean(name, PEERS) or ", ".join(PEERS))
    if options.plot is not None:
        from coda_lang.bench import plot

        plot.available()
    try:
        device.get(0)
    except BackendError as error:
        raise BackendError(f"bench needs a Hopper GPU: {error.message}", terminal.for_the_gpu(error.help)) from None
    from coda_lang.bench import rows
    from coda_lang.bench.run import WrongError, bench
    from coda_lang.environment import describe

    try:
        with Steps() as progress:
            row = bench(
                program,
                **form.request(options),
                config=options.config,
                peers=peers,
                rounds=options.rounds,
                options=Options(tuned=not options.untuned),
                progress=progress,
            )
    except WrongError as error:
        terminal.error(str(error))
        return 1
    about = describe()
    if options.plot is not None:
        plot.bars(Path(options.plot), [row], about)
    if options.json == "-":
        print(json.dumps({**about, "rows": [asdict(row)]}, indent=1))
        return 0
    if options.json is not None:
        rows.write(Path(options.json), [row], about)
    print(f"{terminal.paint(program.name, 'bold')}  {title(form.call(program, options))}")
    where = device.get(0).name
    print(terminal.paint(f"{where}, medians of {options.rounds} interleaved rounds of queued calls", "dim"))
    print(f"\n{_table(row)}\n")
    if row.least_ms is not None:
        print(f"by the datasheet of an H200, {units.seconds(row.least_ms / 1e3)} at least")
    if row.checked:
        print(f"compared: {', '.join(row.checked)}")
    for path in (options.json, options.plot):
        if path is not None:
            print(f"wrote {path}")
    return 0


def _table(row: Row) -> str:
    columns = [
        Column("who"),
        Column("time", right=True),
        Column("/ cuBLAS", right=True),
        Column("/ coda_lang", right=True),
    ]
    columns += [Column("TFLOP/s", right=True), Column("")]
    lines = [_line(row, "coda_lang", row.ours_ms, row.config or "")]
    if row.config != row.default_config:
        lines.append(_line(row, "coda_lang, untuned", row.default_ms, row.default_config or ""))
    times = {"cublas": row.cublas_ms, "torch.compile": row.torch_compile_ms, "quack": row.quack_ms}
    times["liger"] = row.liger_ms
    for name, ms in times.items():
        if ms is not None or name in row.absent:
            lines.append(_line(row, NAMES[name], ms, row.absent.get(name) or row.notes.get(name, "")))
    return table(columns, lines)


def _line(row: Row, name: str, ms: float | None, note: str) -> list[str]:
    if ms is None:
        return [name, "–", "–", "–", "–", note]
    rate = "–" if row.tflops is None else f"{row.tflops * row.ours_ms / ms:.0f}"
    relative = "–" if row.cublas_ms is None else f"{ms / row.cublas_ms:.3f}"
    return [name, units.seconds(ms / 1e3), relative, f"{ms / row.ours_ms:.3f}", rate, note]
