"""Draws a results file: time relative to cuBLAS's plain product, ours beside torch.compile.

python benchmarks/plot.py benchmarks/results/NAME.json docs/benchmark.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text())
    sizes = sorted({r["m"] for r in data["rows"]})
    figure, axes = plt.subplots(1, len(sizes), figsize=(11, 5))
    for ax, size in zip(axes, sizes, strict=True):
        rows = [r for r in data["rows"] if r["m"] == size][::-1]
        places = range(len(rows))
        compiled = [r["torch_compile_ms"] / r["cublas_ms"] for r in rows]
        ours = [r["ours_ms"] / r["cublas_ms"] for r in rows]
        ax.barh([p + 0.2 for p in places], ours, 0.38, label="coda_lang", color="#2a7de1")
        ax.barh([p - 0.2 for p in places], compiled, 0.38, label="torch.compile", color="#b8bcc4")
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_xlim(0.8, 1.5)
        for p, x, y in zip(places, ours, compiled, strict=True):
            ax.text(min(x, 1.46) + 0.005, p + 0.2, f"{x:.3f}", va="center", fontsize=7)
            ax.text(min(y, 1.44) + 0.005, p - 0.2, f"{y:.3f}", va="center", fontsize=7)
        ax.set_yticks(list(places), [r["label"] for r in rows], fontsize=8)
        ax.tick_params(labelleft=True)
        vocabulary = next((f"; cross-entropy: N = {r['n']}" for r in rows if r["n"] != size), "")
        ax.set_title(f"M = N = K = {size}{vocabulary}", fontsize=9)
        ax.set_xlabel("time / cuBLAS's plain product", fontsize=8)
    figure.suptitle(f"{data['gpu']}, bf16, {data['date']}", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="upper right")
    figure.tight_layout()
    figure.savefig(sys.argv[2])


if __name__ == "__main__":
    main()
