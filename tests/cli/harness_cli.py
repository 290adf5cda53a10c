"""Running the command line, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "programs"
SWIGLU = str(PROGRAMS / "swiglu.coda")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # so that a process means the same on every machine

GOOD = """"a scaled product"
kernel good<M, N, K; T: bf16 | f16>(
    a: T[M, K], b: T[N, K], scale: f32, bias: f32[N] = 0) -> (z: T[M, N], y: T[M, N/2]?) {
    x = a @ b.T * scale + bias
    z <- x
    g, u = pairs(x)
    y <- g * u
}

reduce total<M, N>(x: f32[M, tiles(N)] >= 0) -> (t: f32[M]) {
    t <- sum(x, over=tiles(N))
}
"""
WRONG = "kernel wrong<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (z: bf16[M, N]) {\n    z <- a @ b.T + nothing\n}\n"


def coda_run(
    *arguments: str, input: bytes | None = None, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """`coda-run` in a process of its own, its output not a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "coda_lang.cli", *arguments],
        input=input,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **NO_GPU, "PYTHONPATH": str(ROOT), **environment},
        timeout=120,
        check=False,
    )
