"""Measures the groups of rows that docs/benchmarks.md shows, and makes its table and pictures from them.

    python benchmarks/run.py list                              the groups
    python benchmarks/run.py compile GROUP…                    compiles the candidates, on all cores; needs no GPU
    python benchmarks/run.py measure GROUP… --out DIR          tunes and measures; another call goes on where it ended
    python benchmarks/run.py host --out DIR                    host time of each way to call
    python benchmarks/run.py startup --out DIR                 the first call, cold and from the cache
    python benchmarks/run.py reduces --out DIR                 what the reduces of a layer cost, beside their products
    python benchmarks/run.py maps --out DIR                    maps beside copies of as many bytes
    python benchmarks/run.py merge DIR RESULTS.json            one file of all of them
    python benchmarks/run.py tried TRIED.json                  what tuning timed, of all that the cache has
    python benchmarks/run.py show RESULTS.json [--plots DIR]   the table, in Markdown; the pictures

Each group fits a run of --minutes (8.5 by default): what is left is said, and done by calling
again. A row is kept as soon as it is measured. Without a group, all of them; `--only` takes some kernels of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from groups import GROUPS, Spec

from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.abi import Emitted
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.files import write_atomically
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.backend_cutlass.problem import problem
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.space import ordered
from coda_lang.bench import rows as results
from coda_lang.bench.peers import PEERS, Options
from coda_lang.bench.rows import Row
from coda_lang.bench.run import bench
from coda_lang.call import Caller
from coda_lang.environment import describe
from coda_lang.errors import BackendError
from coda_lang.measure.described import described_call
from coda_lang.tuning import keys, shortlist
from coda_lang.tuning.store import TunedStore
from coda_lang.tuning.tune import tune

BUDGET = 16
FIRST = 0.6  # of the budget, as the tuner divides it
# What is no group: its file's key.
OTHERS = {"host": "microseconds", "startup": "seconds", "reduces": "reduces", "maps": "maps"}
TYPICAL_SECONDS = 60.0  # of a row, until one was measured


class File:
    """A group's results on disk: what it was measured on, its rows and the rows that failed."""

    def __init__(self, path: Path) -> None:
        """Raises SystemExit for a file that was measured on another GPU or with other software."""
        self.path = path
        self.about = describe()
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        if path.exists():
            about, self.rows = results.read(path)
            for key in ("gpu", "driver", "versions"):
                if about.get(key) != self.about[key]:
                    sys.exit(f"{path} was measured with another {key}: choose another folder")

    def has(self, spec: Spec) -> bool:
        return any(_is(row, spec) for row in self.rows)

    def add(self, row: Row) -> None:
        self.rows = results.merged([self.rows, [row]])
        self.write()

    def write(self) -> None:
        results.write(self.path, self.rows, {**self.about, "failed": self.failed})


def _is(row: Row, spec: Spec) -> bool:
    same = (row.kernel, row.label, row.m, row.n, row.k) == (spec.kernel, spec.label, spec.m, spec.n, spec.k)
    return same and row.group == spec.group


def _name(spec: Spec) -> str:
    return f"{spec.kernel} {spec.m}×{spec.n}×{spec.k}"


# -- compiling ahead ---------------------------------------------------------------------------------------------------


def units(specs: Sequence[Spec], budget: int) -> list[Emitted]:
    """The kernels that tuning these rows compiles first, each once."""
    found: dict[str, Emitted] = {}
    for spec in specs:
        program = spec.program()
        call = described_call(program.ir, sizes=spec.sizes(program.ir), inputs=spec.inputs, outputs=spec.outputs)
        gpu = GpuProgram(Caller(program.ir))
        default = gpu.untuned(call)
        asked = problem(call.binding, footprint(call.kernel, call.binding.dtypes, gpu.emit(call, default).direct))
        configs, _ = ordered(asked)
        first = shortlist.first([c for c in configs if c != default], ceil(budget * FIRST))
        for config in (default, *first):
            unit = gpu.emit(call, config)
            found.setdefault(unit.source, unit)
    return list(found.values())


def compile_ahead(specs: Sequence[Spec], budget: int) -> None:
    made = units(specs, budget)
    print(f"{len(made)} kernels", flush=True)
    start, done = time.monotonic(), 0

    def told(index: int, outcome: object) -> None:
        nonlocal done
        done += 1
        if isinstance(outcome, BackendError):
            print(f"  {outcome.message.splitlines()[0]}", flush=True)
        if done % 20 == 0:
            print(f"  {done} after {time.monotonic() - start:.0f} s", flush=True)

    compile_many(made, done=told)
    print(f"compiled, or in the cache, in {time.monotonic() - start:.0f} s", flush=True)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(specs: Sequence[Spec], folder: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Rows until the time is over; how many are left, and how many failed."""
    end, longest, left, failed = time.monotonic() + 60 * options.minutes, 0.0, 0, 0
    files: dict[str, File] = {}
    for group in dict.fromkeys(s.group for s in specs):
        files[group] = File(folder / f"{group}.json")
    due = [s for s in specs if not files[s.group].has(s)]
    if options.budget and due:
        compile_ahead(due, options.budget)
    for spec in due:
        file = files[spec.group]
        if time.monotonic() + (longest or TYPICAL_SECONDS) > end:
            left += 1
            continue
        start = time.monotonic()
        try:
            row = one(spec, options)
            file.failed.pop(_name(spec), None)
            file.add(row)
            print(_line(row), flush=True)
        except Exception as error:  # the other rows can still be measured
            file.failed[_name(spec)] = f"{type(error).__name__}: {error}"
            file.write()
            failed += 1
            print(f"{_name(spec)} failed: {error}", flush=True)
        longest = max(longest, time.monotonic() - start)
        _free()
    return left, failed


def one(spec: Spec, options: argparse.Namespace) -> Row:
    """Tune if that was not done, and measure."""
    program = spec.program()
    sizes = spec.sizes(program.ir)
    if options.budget and not _tuned(spec):
        tune(program, sizes=sizes, inputs=spec.inputs, outputs=spec.outputs, budget=options.budget)
    peers = options.peers.split(",") if options.peers else spec.peers or PEERS
    row = bench(
        program,
        sizes=sizes,
        inputs=spec.inputs,
        outputs=spec.outputs,
        peers=peers,
        rounds=options.rounds,
        options=Options(tuned=not options.untuned_peers),
        sustained=options.sustained,
    )
    return replace(row, label=spec.label, group=spec.group)


def _tuned(spec: Spec) -> bool:
    """Whether the cache has a schedule for this row."""
    program = spec.program()
    call = described_call(program.ir, sizes=spec.sizes(program.ir), inputs=spec.inputs, outputs=spec.outputs)
    form = GpuProgram(Caller(program.ir)).form(call)
    return TunedStore().get(keys.key(device.get(0).name, form, (spec.m, spec.n, spec.k))) is not None


def _free() -> None:
    """What a row held: the next one may need all of the memory."""
    for name in ("torch", "cupy"):
        module = sys.modules.get(name)
        if module is None:
            continue
        if name == "torch" and module.cuda.is_available():
            module._dynamo.reset()
            module.cuda.empty_cache()
        elif name == "cupy" and hasattr(module, "get_default_memory_pool"):
            module.get_default_memory_pool().free_all_blocks()


def _line(row: Row) -> str:
    numbers = [f"{row.ours_ms:9.4f} ms"]
    for name in ("ours_ms", "default_ms", "torch_compile_ms", "quack_ms", "liger_ms"):
        ratio = row.ratio(name)
        numbers.append(f"{ratio:7.3f}" if ratio is not None else f"{'–':>7}")
    return f"{row.label:34}{f'{row.m}×{row.n}×{row.k}':>20} {' '.join(numbers)}  {row.config}"


# -- what else is measured ---------------------------------------------------------------------------------------------


def host(folder: Path) -> None:
    from host import ways

    from coda_lang.bench.run import _library
    from coda_lang.measure.gpu import GpuStopwatch

    library = _library()
    program = GROUPS["linear-4096"][0].program()
    found = {}
    for m in (16, 512):
        sizes = {"M": m, "N": 512, "K": 512}
        found[f"linear {m}×512×512"] = dict(ways(program, library, sizes, GpuStopwatch(0, library)))
    _keep(folder / "host.json", {"microseconds": found})


def startup(folder: Path) -> None:
    from startup import KERNELS, cold_and_cached

    _keep(folder / "startup.json", {"seconds": {kernel: cold_and_cached(file, kernel) for file, kernel in KERNELS}})


def reduces(folder: Path) -> None:
    from groups import LAYERS
    from reduces import shares

    _keep(folder / "reduces.json", {"reduces": [row for width, mlp in LAYERS for row in shares(width, mlp)]})


def maps(folder: Path) -> None:
    from maps import bandwidths

    _keep(folder / "maps.json", {"maps": list(bandwidths())})


def _keep(path: Path, data: dict[str, Any]) -> None:
    whole = {**describe(), **data}
    write_atomically(path, (json.dumps(whole, indent=1) + "\n").encode())
    print(json.dumps(data, indent=1), flush=True)


def merge(folder: Path, target: Path) -> None:
    """The rows of all groups in one file, with host times and startup if they are there."""
    parts, about, failed = [], {}, {}
    for path in sorted(folder.glob("*.json")):
        if path.stem in OTHERS:
            continue
        here, rows = results.read(path)
        failed |= here.pop("failed", {})
        about = about or here
        parts.append(rows)
    for name, key in OTHERS.items():
        if (folder / f"{name}.json").exists():
            about[name] = json.loads((folder / f"{name}.json").read_text())[key]
    order = [s for specs in GROUPS.values() for s in specs]
    place = {(s.group, s.kernel, s.label, s.m, s.n, s.k): i for i, s in enumerate(order)}
    merged = results.merged(parts)
    merged.sort(key=lambda r: place.get((r.group, r.kernel, r.label, r.m, r.n, r.k), len(order)))
    results.write(target, merged, {**about, **({"failed": failed} if failed else {})})
    print(f"{len(merged)} rows in {target}" + (f"; {len(failed)} failed" if failed else ""))


def tried(target: Path) -> None:
    """Every schedule that tuning timed, relative to the default's time: what the model of them is held to."""
    found = [asdict(entry.value) for entry in TunedStore().show()]
    found.sort(key=lambda t: (t["shape"], t["program"], t["outputs"]))
    about = {key: {json.dumps(t.pop(key), sort_keys=True) for t in found} for key in ("gpu", "driver", "versions")}
    if any(len(values) != 1 for values in about.values()):
        sys.exit("the cache has nothing that was tuned, or schedules of several GPUs or versions")
    whole = {key: json.loads(values.pop()) for key, values in about.items()}
    write_atomically(target, (json.dumps({**whole, "tuned": found}, indent=1) + "\n").encode())
    print(f"{sum(len(t['tried']) for t in found)} schedules of {len(found)} calls in {target}")


# -- showing -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: times relative to cuBLAS's plain product."""
    yield "| work | M×N×K | coda_lang | untuned | torch.compile | QuACK | Liger | TFLOP/s | schedule |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        cells = [row.label or row.kernel, f"{row.m}×{row.n}×{row.k}"]
        for name in ("ours_ms", "default_ms", "torch_compile_ms", "quack_ms", "liger_ms"):
            ratio = row.ratio(name)
            cells.append("–" if ratio is None else f"{ratio:.3f}")
        rate = 2 * row.m * row.n * row.k / row.ours_ms / 1e9 if row.m and row.n and row.k else None
        cells += ["–" if rate is None else f"{rate:.0f}", f"`{row.config}`"]
        yield f"| {' | '.join(cells)} |"


def pictures(rows: Sequence[Row], about: dict[str, Any], folder: Path) -> None:
    from coda_lang.bench import plot

    folder.mkdir(parents=True, exist_ok=True)
    shown = ("linear", "fused", "backward", "cross")
    square = [replace(r, group=f"M = K = {r.m}") for r in rows if r.group.split("-")[0] in shown]
    layer = [r for r in rows if r.group.startswith("layer-")]
    scaling = [r for r in rows if r.group.startswith("scaling-")]
    if square:
        plot.bars(folder / "benchmark.svg", square, about)
    if layer:
        plot.bars(folder / "layers.svg", layer, about)
    if scaling:
        plot.lines(folder / "scaling.svg", scaling, about)


def _told(left: int, failed: int) -> int:
    parts = [f"{left} row{'s are' if left != 1 else ' is'} left"] if left else []
    parts += [f"{failed} row{'s' if failed != 1 else ''} failed"] if failed else []
    print(f"{', '.join(parts)}: call again" if parts else "all rows are there", flush=True)
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    for name in ("compile", "measure"):
        sub = commands.add_parser(name)
        sub.add_argument("groups", nargs="*", choices=[*GROUPS, []], metavar="GROUP")
        sub.add_argument("--only", type=lambda text: text.split(","), help="kernels, separated by commas")
        sub.add_argument("--budget", type=int, default=BUDGET, help="schedules tried for each row; 0: no tuning")
        if name == "measure":
            sub.add_argument("--out", type=Path, required=True)
            sub.add_argument("--minutes", type=float, default=8.5)
            sub.add_argument("--rounds", type=int, default=10)
            sub.add_argument("--peers", help="in place of each row's own, separated by commas")
            sub.add_argument("--untuned-peers", action="store_true")
            sub.add_argument("--sustained", action="store_true", help="each at the clock that it holds alone")
    for name in OTHERS:
        commands.add_parser(name).add_argument("--out", type=Path, required=True)
    sub = commands.add_parser("merge")
    sub.add_argument("folder", type=Path)
    sub.add_argument("results", type=Path)
    commands.add_parser("tried").add_argument("target", type=Path)
    sub = commands.add_parser("show")
    sub.add_argument("results", type=Path)
    sub.add_argument("--plots", type=Path)
    options = parser.parse_args(argv)
    if options.command == "list":
        for name, specs in GROUPS.items():
            print(f"{name}: {', '.join(_name(s) for s in specs)}")
    elif options.command in ("compile", "measure"):
        specs = [s for name in options.groups or GROUPS for s in GROUPS[name]]
        unknown = set(options.only or ()) - {s.kernel for s in specs}
        if unknown:
            parser.error(f"--only: no row of these groups measures {', '.join(sorted(unknown))}")
        specs = [s for s in specs if options.only is None or s.kernel in options.only]
        if options.command == "compile":
            compile_ahead(specs, options.budget)
        else:
            return _told(*measure(specs, options.out, options))
    elif options.command in OTHERS:
        {"host": host, "startup": startup, "reduces": reduces, "maps": maps}[options.command](options.out)
    elif options.command == "tried":
        tried(options.target)
    elif options.command == "merge":
        merge(options.folder, options.results)
    else:
        about, rows = results.read(options.results)
        print("\n".join(table(rows)))
        if options.plots is not None:
            pictures(rows, about, options.plots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
