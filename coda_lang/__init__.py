"""A small typed language for the epilogues of matrix products.

The programs are those of the CODA paper (arXiv 2605.19269): one GEMM, and an epilogue from five primitive classes.
"""

from coda_lang.api import Module, Program, Result, load, loads
from coda_lang.errors import ArgumentError, BackendError, CodaError, Diagnostic
from coda_lang.version import VERSION as __version__

__all__ = [
    "ArgumentError",
    "BackendError",
    "CodaError",
    "Diagnostic",
    "Module",
    "Program",
    "Result",
    "__version__",
    "load",
    "loads",
]
