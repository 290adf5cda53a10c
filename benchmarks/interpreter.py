"""The interpreter's time beside NumPy's own product of the same shape.

    python benchmarks/interpreter.py [--size 2048] [--rounds 7] [--backward] [--json FILE] [NAME …]

For each kernel with a product: the time of a whole call on bf16 operands (widening, product, epilogue, rounding), and
of `a @ b.T` on f32 arrays that are already there. Both run in this process, in turns, so that whatever else the
machine does falls on both; shown are medians, the median of the rounds' ratios and the smallest times' ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")  # as coda-run does, before NumPy is imported

import numpy as np

import coda_lang as coda
from coda_lang.data import draw

PROGRAMS = Path(__file__).parents[1] / "programs"
FORWARD = (
    "linear", "linear_act", "swiglu", "rmsnorm_linear", "rmsnorm_swiglu", "residual_rms", "residual_layernorm",
    "layernorm_linear", "rope", "rmsnorm_rope", "qk_norm", "quantize", "cross_entropy", "rmsnorm_cross_entropy",
)  # fmt: skip


def kernels(names: list[str], backward: bool) -> dict[str, coda.Program]:
    """Every kernel with a product of the chosen files, by name."""
    files = sorted(p.stem for p in PROGRAMS.glob("*.coda"))
    found: dict[str, coda.Program] = {}
    for file in files if backward else [f for f in FORWARD if f in files]:
        own = {n: p for n, p in coda.load(PROGRAMS / f"{file}.coda").items() if p.ir.product is not None}
        found |= {n: p for n, p in own.items() if not names or n in names}
    return found


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(program: coda.Program, size: int, rounds: int) -> dict[str, Any]:
    """Times of the interpreter and of the bare product, taken in turns."""
    axes = program.ir.axes
    sizes = {n: size for n in axes if n in ("M", "N", "K")}
    sizes |= {n: 128 for n in axes if n == "D"} | {n: 4096 for n in axes if n == "P"}
    arguments = draw(program.ir, sizes=sizes).arguments
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))

    def call() -> Any:
        return program(**arguments)

    def product() -> Any:
        return a @ b.T

    for work in (call, product):
        work()
    whole: list[float] = []
    bare: list[float] = []
    for i in range(rounds):
        order = [(whole, call), (bare, product)]
        for times, work in order if i % 2 else reversed(order):
            times.append(seconds(work))
    return {
        "interpreter_s": whole,
        "product_s": bare,
        "ratio": statistics.median(w / p for w, p in zip(whole, bare, strict=True)),
        "ratio_of_minima": min(whole) / min(bare),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="kernels to measure; all forward ones by default")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backward", action="store_true", help="backward kernels too")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{'kernel':28} {'interpreter':>12} {'a @ b.T':>10} {'ratio':>7} {'of minima':>10}")
    for name, program in kernels(options.names, options.backward).items():
        r = results[name] = measure(program, options.size, options.rounds)
        whole, bare = (statistics.median(r[k]) * 1e3 for k in ("interpreter_s", "product_s"))
        print(f"{name:28} {whole:9.1f} ms {bare:7.1f} ms {r['ratio']:7.2f} {r['ratio_of_minima']:10.2f}", flush=True)
    if options.json:
        about = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "size": options.size,
            "dtype": "bf16",
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        options.json.write_text(json.dumps({**about, "kernels": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
