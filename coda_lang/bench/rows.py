"""Results of benchmarks: one row for each call, in a form that plots and tables are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coda_lang.backend_cutlass.files import write_atomically
from coda_lang.environment import describe


@dataclass(frozen=True)
class Row:
    """One call. Times are medians in milliseconds, None where something did not take part; `absent` says why.

    `m`, `n` and `k` are the rows, columns and depth of the product, None where there is none. `ours_ms` is the time of
    an ordinary call, with `config`; `default_ms` that without tuning. `samples` has every measurement by name.
    `interval` is the 95 % interval of `ours_ms / cublas_ms`, `least_ms` what the datasheet's peaks allow.
    """

    program: str
    kernel: str
    m: int | None
    n: int | None
    k: int | None
    dtype: str
    ours_ms: float
    cublas_ms: float | None
    torch_compile_ms: float | None
    quack_ms: float | None
    config: str | None
    samples: dict[str, list[float]]
    default_ms: float
    default_config: str | None
    liger_ms: float | None = None
    interval: list[float] | None = None
    tflops: float | None = None
    least_ms: float | None = None
    outputs: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    label: str = ""
    group: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes a row the same measurement as another."""
        return (self.group, self.program, self.kernel, self.m, self.n, self.k, self.dtype, tuple(self.outputs))

    def ratio(self, name: str) -> float | None:
        """A time relative to cuBLAS's; `name` is that of a field."""
        time = getattr(self, name)
        return None if time is None or self.cublas_ms is None else float(time / self.cublas_ms)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Row:
        """The row that `asdict` wrote; unknown fields are dropped. Raises TypeError if one is missing."""
        known = Row.__dataclass_fields__
        return Row(**{n: x for n, x in data.items() if n in known})  # files from before some fields have defaults


def write(path: Path, rows: Sequence[Row], about: dict[str, Any] | None = None) -> None:
    """A results file: what it was measured on, then the rows. Raises OSError."""
    data = {**(describe() if about is None else about), "rows": [asdict(r) for r in rows]}
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What a results file was measured on, and its rows. Raises OSError, ValueError."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {n: x for n, x in data.items() if n != "rows"}, [Row.from_json(r) for r in data["rows"]]


def merged(parts: Iterable[Iterable[Row]]) -> list[Row]:
    """The rows of several files; of two measurements of the same call, the later."""
    found: dict[tuple[object, ...], Row] = {}
    for part in parts:
        for row in part:
            found.pop(row.key, None)
            found[row.key] = row
    return list(found.values())
