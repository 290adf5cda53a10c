"""Runs every program once, for compute-sanitizer: nothing is compared, and each array has an allocation of its own.

    python tests/gpu/sanitize.py --compile                                     # fills the compile cache
    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
    compute-sanitizer --tool racecheck python tests/gpu/sanitize.py

Random programs can be added: `--random 20`; `--only NAME` takes the kernels whose case has the text in its name, and
`--part 2/8` the second eighth, for several processes side by side.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

# ruff: noqa: E402
sys.path[:0] = [str(Path(__file__).parents[i] / part) for i, part in ((0, ""), (1, "properties"), (2, ""))]

from gpu_cases import Case, all_cases
from gpu_harness import GpuRun, emitted

from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.errors import BackendError

if TYPE_CHECKING:
    from gpu_random import RandomCase


def cases(random_programs: int, only: str) -> list[Case | RandomCase]:
    shapes = ("unaligned", "ragged", "heads")
    found: list[Case | RandomCase] = [
        c for c in all_cases() if c.shape in shapes and c.dtype == "bf16" and c.full and c.exact
    ]
    if random_programs:
        from gpu_random import RandomCase, drawn  # brings in torch, which a sanitizer need not see
    for seed in range(random_programs):
        try:
            drawn(seed)
        except BackendError:
            continue
        found.append(RandomCase(seed, "normal"))
    return [c for c in found if only in str(c)]


def compile_all(chosen: list[Case | RandomCase]) -> None:
    units = {unit.source: unit for unit in map(emitted, chosen)}
    outcomes = compile_many(list(units.values()))
    failed = [str(x) for x in outcomes if not isinstance(x, Cubin)]
    print(f"sanitize: compiled {len(outcomes) - len(failed)} of {len(outcomes)} kernels", *failed[:3], sep="\n")
    sys.exit(bool(failed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile only: needs no GPU")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="also the first N random programs")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains the text")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="one of so many parts of the cases")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    chosen = cases(options.random, options.only)[part - 1 :: parts]
    if options.compile:
        compile_all(chosen)
    import cupy

    # A pool's blocks are longer than the arrays in them: reads past an end would go unseen.
    cupy.cuda.set_allocator(None)
    start = time.perf_counter()
    failed = []
    for case in chosen:
        try:
            GpuRun(case).results()
        except Exception as error:
            failed.append(f"{case}: {error}")
    try:
        cupy.cuda.Device(0).synchronize()
    except Exception as error:
        failed.append(str(error))
    seconds = time.perf_counter() - start
    counted = f"ran {len(chosen)} cases in {seconds:.0f} s, {len(failed)} failures"
    print(f"sanitize: {counted}", *failed[:10], sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
