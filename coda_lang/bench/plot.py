"""Pictures of results, by matplotlib: times relative to cuBLAS's plain product, and how they change with a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coda_lang.bench.rows import Row
from coda_lang.errors import BackendError

# Field, legend and colour, from the top bar down.
SERIES = (
    ("ours_ms", "coda_lang", "#2a7de1"),
    ("torch_compile_ms", "torch.compile", "#b8bcc4"),
    ("quack_ms", "QuACK", "#e08a2e"),
    ("liger_ms", "Liger", "#7a9e5a"),
)
_LIMIT = 2.5  # longer bars are cut: an arrow says so


def available() -> None:
    """Raises BackendError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise BackendError("matplotlib is not installed", "pip install matplotlib, or leave out the plot")


def bars(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """A bar for each of a row's times relative to cuBLAS's, a panel for each group of rows. Bars begin at 1: those of
    what is slower go to the right.

    Raises:
        BackendError: matplotlib is not installed.
        ValueError: no row has a time of cuBLAS.
    """
    available()
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.cublas_ms is not None:
            groups.setdefault(row.group or _shape(row), []).append(row)
    if not groups:
        raise ValueError("no row has a time of cuBLAS to compare with")
    height = 1.9 + 0.42 * max(len(g) for g in groups.values())
    figure, axes = plt.subplots(1, len(groups), figsize=(5.5 * len(groups), height), squeeze=False)
    for ax, (title, members) in zip(axes[0], groups.items(), strict=True):
        shown = [s for s in SERIES if any(r.ratio(s[0]) is not None for r in members)]
        width = 0.8 / len(shown)
        low, high = 0.96, 1.1
        for i, (name, label, colour) in enumerate(shown):
            named: str | None = label  # of the first bar that is drawn
            for place, row in enumerate(reversed(members)):
                ratio = row.ratio(name)
                if ratio is not None:
                    at, end = place + 0.4 - width * (i + 0.5), min(ratio, _LIMIT)
                    ax.barh(at, end - 1, 0.9 * width, left=1, color=colour, label=named)
                    named = None
                    text = f"{ratio:.3f}" + (" →" if ratio > _LIMIT else "")
                    ax.text(max(end, 1.0), at, f" {text}", va="center", fontsize=6)
                    low, high = min(low, end), max(high, end)
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_xlim(low - 0.04, high + 0.14 * (high - low))
        ax.set_yticks(range(len(members)), [_title(r) for r in reversed(members)], fontsize=7)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("time / cuBLAS's plain product", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.suptitle(f"{about.get('gpu')}, {about.get('date')}", fontsize=10)
    figure.tight_layout(rect=(0, 0.35 / height, 1, 1))  # the legend has a third of an inch below
    figure.legend(unique.values(), unique.keys(), fontsize=8, loc="lower center", ncols=len(unique))
    figure.savefig(path)
    plt.close(figure)


def lines(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Throughput over the rows of the product, a line for each kernel and for cuBLAS.

    Raises:
        BackendError: matplotlib is not installed.
    """
    available()
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4.5))
    for kernel in dict.fromkeys(r.kernel for r in rows):
        members = sorted((r for r in rows if r.kernel == kernel and r.m), key=lambda r: r.m or 0)
        for name, label, style in (("ours_ms", kernel, "-o"), ("cublas_ms", None, "--")):
            points = [(r.m, rate) for r in members if (rate := _rate(r, name)) is not None]
            if points and (label is not None or kernel == rows[0].kernel):
                ax.plot(*zip(*points, strict=True), style, markersize=3, label=label or "cuBLAS, the product alone")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("M", fontsize=9)
    ax.set_ylabel("TFLOP/s", fontsize=9)
    ax.set_title(f"N = {rows[0].n}, K = {rows[0].k}; {about.get('gpu')}, {about.get('date')}", fontsize=9)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _rate(row: Row, name: str) -> float | None:
    """TFLOP/s of the product in a row's time."""
    time = getattr(row, name)
    if time is None or row.m is None or row.n is None or row.k is None:
        return None
    return float(2 * row.m * row.n * row.k / time / 1e9)


def _title(row: Row) -> str:
    return f"{row.label or row.kernel}\n{_shape(row)}"


def _shape(row: Row) -> str:
    return "×".join(str(x) for x in (row.m, row.n, row.k) if x is not None)
