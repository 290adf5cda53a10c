"""`coda-run tune FILE [KERNEL]`: the fastest schedule for calls of a shape, found on a GPU and kept."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.model import predict
from coda_lang.backend_cutlass.problem import problem
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.space import Rejected, ordered
from coda_lang.call import Caller
from coda_lang.cli import form, terminal, units
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.progress import Steps
from coda_lang.cli.table import Column, table
from coda_lang.errors import BackendError
from coda_lang.measure.described import title
from coda_lang.tuning import shortlist

if TYPE_CHECKING:
    from coda_lang.api import Program
    from coda_lang.tuning.tune import Tried, Tuning


def run(options: argparse.Namespace) -> int:
    program = form.program(options.file, options.kernel, None)
    if program.ir.product is None:
        raise UsageError(f"{program.name} is a {program.kind} and has no schedule to tune")
    if options.dry_run:
        return _dry_run(program, options)
    try:
        device.get(0)
    except BackendError as error:
        help = f"{terminal.for_the_gpu(error.help)}; " if error.help else ""
        text = f"{help}--dry-run lists the candidates by the model's time, without a GPU"
        raise BackendError(f"tuning needs a Hopper GPU: {error.message}", text) from None
    from coda_lang.tuning.tune import tune

    with Steps() as progress:
        found = tune(
            program,
            **form.request(options),
            budget=options.budget,
            save=not options.no_save,
            progress=progress,
        )
    if options.json:
        terminal.print_json(_as_json(found, options.all))
        return 0
    print(f"{terminal.paint(program.name, 'bold')}  {title(form.call(program, options))}")
    count = len(found.tried)
    print(terminal.paint(f"{found.gpu}, {count} schedules compiled and timed in {found.seconds:.0f} s", "dim"))
    print(f"\n{_table(found, len(found.tried) if options.all else options.top)}\n")
    print(_left_out(found.rejected, found.untried))
    if options.all:
        print(f"\n{_rejections(found.rejected)}")
    print(_verdict(found))
    for note in found.notes:
        terminal.warning(note)
    return 0


# -- what was tried ----------------------------------------------------------------------------------------------------


def _table(found: Tuning, top: int) -> str:
    columns = [Column("schedule"), Column("time", right=True), Column("/ default", right=True)]
    columns += [Column("by the model", right=True), Column("registers", right=True), Column("spills", right=True)]
    columns += [Column("")]
    shown = list(found.tried[:top])
    shown += [t for t in found.tried[top:] if t.config in (found.default, found.winner)]
    return table(columns, [_line(found, t) for t in shown])


def _line(found: Tuning, tried: Tried) -> list[str]:
    report = tried.report
    spills = 0 if report is None else report.spill_store_bytes + report.spill_load_bytes
    marks = [m for m, c in (("chosen", found.winner), ("the default", found.default)) if c == tried.config]
    return [
        str(tried.config),
        "–" if tried.ms is None else units.seconds(tried.ms / 1e3),
        "–" if tried.ratio is None else f"{tried.ratio:.3f}",
        units.seconds(tried.predicted),
        "–" if report is None else str(report.registers),
        "–" if report is None else f"{spills} B" if spills else "none",
        ", ".join(marks) or tried.dropped or "",
    ]


def _left_out(rejected: Iterable[Rejected], untried: int) -> str:
    counts: Counter[str] = Counter()
    for r in rejected:
        counts[r.kind] += r.count
    kinds = ", ".join(f"{count} {_KINDS[kind]}" for kind, count in counts.most_common())
    return f"left out: {kinds or 'none'}\nnot tried: {untried} that can be built (--budget tries more)"


_KINDS = {
    "same": "make no difference",
    "shape": "have no such tile",
    "registers": "take too many registers",
    "shared memory": "take too much shared memory",
    "segments": "cut a segment",
    "edge": "lie half past the edge",
    "cluster": "have a cluster past the edge",
}


def _rejections(rejected: Iterable[Rejected]) -> str:
    columns = [Column("left out"), Column("schedules", right=True), Column("reason")]
    return table(columns, [[r.what, str(r.count), r.reason] for r in rejected])


def _verdict(found: Tuning) -> str:
    ratio, low, high = found.interval
    if found.winner == found.default:
        text = "\nnothing is faster than the default by more than chance"
    else:
        text = f"\n{1 / ratio:.3f} times as fast as the default (95 %: {1 / high:.3f} to {1 / low:.3f})"
    if found.saved is None:
        return f"{text}; nothing was saved"
    rows, cols, depth = found.bucket
    return f"{text}\nsaved for products up to {rows} × {cols} × {depth}: {found.saved}"


def _as_json(found: Tuning, whole: bool) -> dict[str, Any]:
    def tried(t: Tried) -> dict[str, Any]:
        numbers: dict[str, Any] = {"config": str(t.config), "ms": t.ms, "ratio": t.ratio, "predicted_s": t.predicted}
        numbers |= {"dropped": t.dropped, "report": None if t.report is None else asdict(t.report)}
        return numbers

    counts: Counter[str] = Counter()
    for r in found.rejected:
        counts[r.kind] += r.count
    members = [{"what": r.what, "count": r.count, "reason": r.reason} for r in found.rejected]
    return {
        "program": found.program,
        "gpu": found.gpu,
        "shape": list(found.shape),
        "bucket": list(found.bucket),
        "default": str(found.default),
        "winner": str(found.winner),
        "interval": list(found.interval),
        "tried": [tried(t) for t in found.tried],
        "rejected": dict(counts),
        **({"rejected_members": members} if whole else {}),
        "untried": found.untried,
        "saved": None if found.saved is None else str(found.saved),
        "seconds": found.seconds,
        "notes": list(found.notes),
    }


# -- without a GPU -----------------------------------------------------------------------------------------------------


def _dry_run(program: Program, options: argparse.Namespace) -> int:
    call = form.call(program, options)
    gpu = GpuProgram(Caller(program.ir))
    default = gpu.untuned(call)
    direct = gpu.emit(call, default).direct
    asked = problem(call.binding, footprint(call.kernel, call.binding.dtypes, direct))
    configs, rejected = ordered(asked)
    first = shortlist.first([c for c in configs if c != default], options.budget)
    shown: Sequence[Config] = configs if options.all else [default, *first]
    rows = [(c, predict(c, asked)) for c in shown]
    if options.json:
        listed = [{"config": str(c), "default": c == default, **asdict(p)} for c, p in rows]
        terminal.print_json({"program": program.name, "candidates": listed, "space": len(configs)})
        return 0
    print(f"{terminal.paint(program.name, 'bold')}  {title(call)}")
    print(terminal.paint("nothing is compiled or run; times are the model's, for a cool H200", "dim"))
    columns = [Column("schedule"), Column("by the model", right=True), Column("mainloop", right=True)]
    columns += [
        Column("epilogue", right=True),
        Column("L2 fetch", right=True),
        Column("power", right=True),
        Column("waves", right=True),
        Column(""),
    ]
    lines = []
    for config, p in rows:
        parts = [units.seconds(x) for x in (p.seconds, p.mainloop, p.epilogue, p.fetch, p.power)]
        lines.append([str(config), *parts, str(p.waves), "the default" if config == default else ""])
    print(f"\n{table(columns, lines)}\n")
    print(_left_out(rejected, len(configs) - len(shown)))
    if options.all:
        print(f"\n{_rejections(rejected)}")
    return 0
