"""Aligned columns of text."""

from __future__ import annotations

from dataclasses import dataclass

from coda_lang.cli.terminal import paint


@dataclass(frozen=True)
class Column:
    title: str
    right: bool = False


def table(columns: list[Column], rows: list[list[str]]) -> str:
    """Titles and rows, two spaces between columns and none at the end of a line."""
    widths = [max(len(c.title), *(len(row[i]) for row in rows), 0) for i, c in enumerate(columns)]

    def line(cells: list[str]) -> str:
        padded = (x.rjust(w) if c.right else x.ljust(w) for x, w, c in zip(cells, widths, columns, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([paint(line([c.title for c in columns]), "bold"), *map(line, rows)])


def number(x: float | int | None) -> str:
    """Five significant digits; whole numbers in full."""
    if x is None:
        return "–"
    return str(x) if isinstance(x, int) else f"{x:.5g}"
