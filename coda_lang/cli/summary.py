"""What came out, in numbers: one line for each output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coda_lang.arrays import view
from coda_lang.cli.table import Column, number, table
from coda_lang.ir.numerics import Array

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Summary:
    """An array's smallest, largest and mean element, NaN left out; None where there is no element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | int | None
    largest: float | int | None
    mean: float | None
    nan: int

    def as_json(self) -> dict[str, object]:
        bounds = {"min": json_number(self.least), "max": json_number(self.largest), "mean": json_number(self.mean)}
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), **bounds, "nan": self.nan}


def summarise(name: str, x: Array) -> Summary:
    """In pieces, so that a large array needs no f64 copy."""
    flat = x.reshape(-1)
    least: float | int | None = None
    largest: float | int | None = None
    total, count, nan = 0.0, 0, 0
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            if part.dtype.kind not in "iu":
                part = part.astype(np.float64)
                missing = np.isnan(part)
                nan += int(missing.sum())
                part = part[~missing] if missing.any() else part
            if part.size:
                low, high = part.min().item(), part.max().item()
                least = low if least is None else min(least, low)
                largest = high if largest is None else max(largest, high)
                total += float(part.sum(dtype=np.float64))
                count += part.size
    return Summary(name, view(x, name).dtype, x.shape, least, largest, total / count if count else None, nan)


def outputs_table(summaries: list[Summary]) -> str:
    columns = [
        Column("output"),
        Column("dtype"),
        Column("shape"),
        Column("min", right=True),
        Column("max", right=True),
        Column("mean", right=True),
        Column("NaN", right=True),
    ]
    rows = [
        [s.name, s.dtype, shape(s.shape), number(s.least), number(s.largest), number(s.mean), str(s.nan)]
        for s in summaries
    ]
    return table(columns, rows)


def shape(extents: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def json_number(x: float | int | None) -> float | int | str | None:
    """JSON has no infinities and no NaN: they are strings."""
    if isinstance(x, float) and not math.isfinite(x):
        return "nan" if x != x else "inf" if x > 0 else "-inf"
    return x
