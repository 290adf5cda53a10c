"""The reference: a checked program evaluated with NumPy."""

from coda_lang.interp.run import DEFAULT_TILE, interpret

__all__ = ["DEFAULT_TILE", "interpret"]
