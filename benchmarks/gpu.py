"""Measures the programs beside cuBLAS's plain product and torch.compile; writes JSON and prints a table.

    python benchmarks/gpu.py --sizes 4096 8192 --out benchmarks/results/NAME.json [--tune] [--only residual_rms …]

Protocol: docs/benchmarks.md. With --tune, every schedule of a short list is compiled in parallel and timed, and the
fastest is reported beside the default one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import interleaved, ratio_interval
from work import WORK, Tensors, Work, product

import coda_lang as coda
from coda_lang.backend_cutlass.config import Config, deepest, rejection
from coda_lang.backend_cutlass.emit import emit, footprint
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.environment import describe

PROGRAMS = Path(__file__).parents[1] / "programs"
L2_BYTES = 60 * 2**20
SHAPES = (
    ("128x256,cluster=2x1,cooperative", 64),
    ("128x256,cluster=2x1,cooperative", 32),
    ("128x128,cluster=2x1,pingpong", 64),
    ("128x192,cluster=2x1,pingpong", 64),
    ("128x192,cluster=2x1,cooperative", 64),
    ("256x128,cluster=2x1,cooperative", 64),
)
SWIZZLES = (1, 8)


def schedules(kernel: Any, dtypes: Any) -> list[Config]:
    """The short list for tuning: each shape as deep as it fits, walked both ways."""
    need = footprint(kernel, dtypes)
    found = []
    for text, columns in SHAPES:
        for swizzle in SWIZZLES:
            config = deepest(Config.parse(f"{text},epilogue={columns},swizzle={swizzle}"), need)
            if rejection(config, need) is None and config not in found:
                found.append(config)
    return found


def measure(work: Work, m: int, n: int, k: int, tune: bool) -> dict[str, Any]:
    program = coda.load(PROGRAMS / f"{work.file}.coda")[work.kernel]
    first = work.arguments(m, n, k)
    used = sum(x.numel() * x.element_size() for x in first.values() if isinstance(x, torch.Tensor))
    sets = [first] + [work.arguments(m, n, k) for _ in range(max(0, -(-2 * L2_BYTES // used) - 1))]
    call = program.caller.call(first, work.outputs, None)
    chosen = program.gpu.config(call)
    assert chosen is not None
    configs = [chosen, *(schedules(call.kernel, call.binding.dtypes) if tune else [])]
    units = [emit(call.kernel, call.binding.dtypes, c) for c in configs]
    start = time.perf_counter()
    compile_many(units)
    compiled = time.perf_counter() - start

    variants: dict[str, Any] = {}
    for config in configs:
        plans = [program.plan(outputs=work.outputs, config=config, **s) for s in sets]
        check(work, first, plans[0](), f"{work.kernel} {config}")
        variants[str(config)] = rotated(plans)
    out = product(first, work.layout)
    variants["cublas"] = rotated([lambda s=s: mm(s, work.layout, out) for s in sets])
    torch._dynamo.reset()
    compiled_torch = torch.compile(work.torch, dynamic=False)
    variants["torch.compile"] = rotated([lambda s=s: compiled_torch(**s) for s in sets])
    samples = interleaved(variants)
    times = {name: statistics.median(x) for name, x in samples.items()}
    best = min((str(c) for c in configs), key=lambda c: times[c])
    ratio, low, high = ratio_interval(samples[best], samples["cublas"])
    return {
        "program": work.file, "kernel": work.kernel, "label": work.label, "group": work.group,
        "m": m, "n": n, "k": k, "dtype": "bf16",
        "ours_ms": times[best], "default_ms": times[str(chosen)], "cublas_ms": times["cublas"],
        "torch_compile_ms": times["torch.compile"], "quack_ms": None,
        "config": best, "default_config": str(chosen), "ratio_interval": [low, high],
        "tflops": 2 * m * n * k / times[best] / 1e9, "compile_seconds": compiled, "samples": samples,
        "ratio": ratio,
    }  # fmt: skip


def mm(s: Tensors, layout: str, out: torch.Tensor) -> None:
    a = s["a"] if layout[0] == "n" else s["a"].T
    torch.mm(a, s["b"].T if layout[1] == "t" else s["b"], out=out)


def rotated(calls: list[Any]) -> Any:
    """One call after another, each on its own arrays: together they are larger than the L2 cache."""
    turn = [0]

    def call() -> None:
        calls[turn[0] % len(calls)]()
        turn[0] += 1

    return call


def check(work: Work, arguments: Tensors, got: Any, what: str) -> None:
    """The outputs that both sides have, against PyTorch in its own rounding; partials are summed first."""
    want = work.torch(**arguments)
    want = want if isinstance(want, tuple) else (want,)
    for name, x, y in zip(got, got.values(), want, strict=True):
        x = x.float()
        if x.shape != y.shape:  # partials
            if work.kernel == "cross_entropy":
                x = torch.logsumexp(x, -1)
            else:
                x = x.sum(0 if x.shape[-1] == y.shape[-1] else -1)
        error = ((x - y.float()).norm() / y.float().norm()).item()
        if not error < 1e-2:
            sys.exit(f"{what}: {name} is wrong: relative error {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--only", nargs="+", help="kernels to measure")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32768])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    print(f"{'':34}{'M×N×K':>18}{'ours':>9}{'cuBLAS':>9}{'/cuBLAS':>9}{'default':>9}{'compile':>9}  config", flush=True)
    for work in WORK:
        if options.only and work.kernel not in options.only:
            continue
        for size in options.sizes:
            for n in options.vocabulary if work.kernel == "cross_entropy" else [size]:
                if work.kernel == "cross_entropy" and size != 4096:
                    continue
                row = measure(work, size, n, size, options.tune)
                rows.append(row)
                shape = f"{size}×{n}×{size}"
                print(f"{work.label:34}{shape:>18}{row['ours_ms']:9.4f}{row['cublas_ms']:9.4f}{row['ratio']:9.3f}"
                      f"{row['default_ms'] / row['cublas_ms']:9.3f}{row['torch_compile_ms'] / row['cublas_ms']:9.3f}"
                      f"  {row['config']}", flush=True)  # fmt: skip
                if options.out is not None:
                    options.out.write_text(json.dumps({**describe(), "rows": rows}, indent=1))
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
