"""Quantities as people read them."""

from __future__ import annotations


def kib(size: int) -> str:
    return f"{size / 1024:.1f} KiB"


def size(count: int) -> str:
    """Bytes in the largest binary unit that leaves a number above one: ``96.0 MiB``."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def scaled(x: float) -> str:
    """A number and the decimal prefix of the unit behind it: ``137 G``; ``12`` and a space if it needs none."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= factor:
            return f"{x / factor:.3g} {prefix}"
    return f"{x:.3g} "


def seconds(x: float) -> str:
    """Three digits in the unit that suits: ``27.5 µs``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if x >= factor:
            return f"{x / factor:.3g} {unit}"
    return f"{x * 1e9:.3g} ns"


def age(x: float) -> str:
    """How long ago, in one unit."""
    for factor, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if x >= factor:
            return f"{int(x / factor)} {unit}"
    return f"{max(0, int(x))} s"
