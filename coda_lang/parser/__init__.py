"""Text to syntax tree, and back."""

from coda_lang.parser.parse import parse, read_source

__all__ = ["parse", "read_source"]
