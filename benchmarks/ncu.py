"""Why a kernel takes the time it takes: one launch under Nsight Compute, and a short table of what it says.

    python benchmarks/ncu.py FILE [KERNEL] --dim M=4096,N=4096,K=4096 [--config SCHEDULE] [--json FILE]

The clock is left as it is (--clock-control none), as in the benchmarks. cuBLAS's plain product is profiled beside the
kernel where torch sees the GPU. Bytes moved stand beside those that the call needs if each array is moved once.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.call import Call
from coda_lang.cost import cost
from coda_lang.data import DEFAULT_TILE
from coda_lang.environment import describe
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call

TIME, CLOCK = "gpu__time_duration.sum", "sm__cycles_elapsed.avg.per_second"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, L2_HITS = "lts__t_bytes.sum", "lts__t_sector_hit_rate.pct"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
PIPES = {p: f"sm__inst_executed_pipe_{p}.avg.pct_of_peak_sustained_active" for p in ("alu", "fma", "xu", "lsu")}
METRICS = (
    TIME, CLOCK, TENSOR, READ, WRITTEN, L2, L2_HITS, *(SHARED.format(o) for o in ("ld", "st")),
    *(CONFLICTS.format(o) for o in ("ld", "st")), *PIPES.values(), *(STALL.format(r) for r in REASONS),
    "smsp__issue_active.avg.pct_of_peak_sustained_active", "launch__registers_per_thread",
)  # fmt: skip
KERNELS = "regex:coda_|gemm|nvjet|cutlass"  # ours, and whatever cuBLAS calls its own
_UNKNOWN = re.compile(r"Failed to find metric (?:regex:\^)?([\w.]+)")
_ATTEMPTS = 6  # names of metrics differ from version to version: those that are not known are left out


Profile = dict[str, float]


def parse(text: str) -> dict[str, Profile]:
    """The metrics of each kernel by its name, in base units, from ``ncu --csv``; the first launch of each counts.

    The table begins at the line of titles: what ncu and the program print before it is skipped.

    Raises:
        ValueError: there is no table.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError("ncu printed no table")
    table = [line for line in lines[start:] if line.startswith('"')]
    found: dict[str, Profile] = {}
    first: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        name, launch = row["Kernel Name"], row["ID"]
        if first.setdefault(name, launch) != launch:
            continue
        value = row["Metric Value"].replace(",", "")
        try:
            found.setdefault(name, {})[row["Metric Name"]] = float(value)
        except ValueError:
            continue  # n/a
    return found


def unknown_metrics(text: str) -> list[str]:
    """The metrics that ncu does not know, by its messages."""
    return list(dict.fromkeys(_UNKNOWN.findall(text)))


def command(script: Sequence[str], metrics: Iterable[str]) -> list[str]:
    return [
        "ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--target-processes", "all",
        "--kernel-name", KERNELS, "--metrics", ",".join(metrics), *script,
    ]  # fmt: skip


def profile(script: Sequence[str]) -> dict[str, Profile]:
    """Runs a command under ncu. Raises SystemExit with what stands in the way."""
    if shutil.which("ncu") is None:
        sys.exit("ncu (Nsight Compute) was not found: install it, or add its folder to PATH")
    metrics = list(METRICS)
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command(script, metrics), capture_output=True, text=True, check=False)
        both = done.stdout + done.stderr
        missing = [m for m in unknown_metrics(both) if m in metrics]
        if not missing:
            break
        metrics = [m for m in metrics if m not in missing]
    if "ERR_NVGPUCTRPERM" in both:
        sys.exit("this user may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or ask who administers it")
    try:
        return parse(done.stdout)
    except ValueError as error:
        sys.exit(f"{error}:\n{both[-2000:]}")


def facts(found: Profile, needed: float | None) -> dict[str, Any]:
    """What explains a time: seconds, utilisations in per cent, bytes, conflicts for each access, stalls in warps.

    A warp that is counted under a stall waits, on average, at each cycle that issues something.
    """
    moved = None if READ not in found or WRITTEN not in found else found[READ] + found[WRITTEN]
    conflicts = {}
    for way, o in (("loads", "ld"), ("stores", "st")):
        accesses, lost = found.get(SHARED.format(o)), found.get(CONFLICTS.format(o))
        if accesses and lost is not None:
            conflicts[way] = lost / accesses
    stalls = {r: found[STALL.format(r)] for r in REASONS if STALL.format(r) in found}
    return {
        "seconds": None if TIME not in found else found[TIME] / 1e9,
        "clock_hz": found.get(CLOCK),
        "tensor_pipe_pct": found.get(TENSOR),
        "pipes_pct": {p: found[m] for p, m in PIPES.items() if m in found},
        "dram_bytes": moved,
        "needed_bytes": needed,
        "l2_bytes": found.get(L2),
        "l2_hit_pct": found.get(L2_HITS),
        "bank_conflicts": conflicts,
        "stalls": dict(sorted(stalls.items(), key=lambda s: -s[1])),
        "registers": found.get("launch__registers_per_thread"),
    }


def lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """The facts as text."""

    def number(value: float | None, unit: str, scale: float = 1.0, digits: int = 1) -> str:
        return "–" if value is None else f"{value * scale:.{digits}f} {unit}"

    ratio = ""
    if found["dram_bytes"] and found["needed_bytes"]:
        ratio = f", {found['dram_bytes'] / found['needed_bytes']:.2f} times what is needed"
    pipes = ", ".join(f"{p} {x:.0f} %" for p, x in found["pipes_pct"].items())
    conflicts = ", ".join(f"{x:.2f} for each wavefront of {way}" for way, x in found["bank_conflicts"].items())
    stalls = ", ".join(f"{r} {x:.2f}" for r, x in list(found["stalls"].items())[:6])
    return [
        name,
        f"  time            {number(found['seconds'], 'µs', 1e6)} at {number(found['clock_hz'], 'MHz', 1e-6, 0)}",
        f"  tensor pipe     {number(found['tensor_pipe_pct'], '%')} of the time",
        f"  other pipes     {pipes or '–'}",
        f"  memory          {number(found['dram_bytes'], 'MB', 1e-6)} moved{ratio}",
        f"  L2              {number(found['l2_bytes'], 'MB', 1e-6)}, {number(found['l2_hit_pct'], '%')} hits",
        f"  bank conflicts  {conflicts or '–'}",
        f"  stalled warps   {stalls or '–'}",
        f"  registers       {number(found['registers'], 'a thread', digits=0)}",
    ]


# -- what is profiled --------------------------------------------------------------------------------------------------


def described(options: argparse.Namespace) -> tuple[Program, Call[Kernel], dict[str, int]]:
    module = coda.load(options.file)
    program = module[options.kernel or Path(options.file).stem]
    assert isinstance(program, Program)
    sizes = {n: int(x) for text in options.dim for n, _, x in (part.partition("=") for part in text.split(","))}
    outputs = options.outputs.split(",") if options.outputs else None
    return program, described_call(program.ir, sizes=sizes, inputs=options.inputs, outputs=outputs), sizes


def launch(options: argparse.Namespace) -> None:
    """Inside ncu: the kernel once, and cuBLAS's product once."""
    from coda_lang.bench.peers import AbsentError, find
    from coda_lang.bench.run import _library
    from coda_lang.measure.gpu import GpuStopwatch
    from coda_lang.measure.workload import drawn_on_device

    program, call, sizes = described(options)
    library = _library()
    given = drawn_on_device(program.ir, library, sizes=sizes, optional=options.inputs)
    program.plan(**given, outputs=[o.name for o in call.kernel.outputs], config=options.config)()
    try:
        find("cublas", call.binding, library).prepare(given).run()
    except AbsentError as reason:
        print(f"without cuBLAS: {reason}")
    GpuStopwatch(0, library).synchronize()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("kernel", nargs="?")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--config")
    parser.add_argument("--inputs", type=lambda text: text.split(","), default=[])
    parser.add_argument("--outputs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.launch:
        launch(options)
        return 0
    _, call, _ = described(options)
    needed = cost(call.binding, DEFAULT_TILE).bytes
    again = sys.argv[1:] if argv is None else list(argv)
    found = profile([sys.executable, str(Path(__file__).resolve()), *again, "--launch"])
    known = {name: facts(p, needed if "coda_" in name else None) for name, p in found.items()}
    for name, data in known.items():
        print("\n".join(lines(name, data)))
    if options.json is not None:
        options.json.write_text(json.dumps({**describe(), "kernels": known}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
