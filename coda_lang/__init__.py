"""A small typed language for the epilogues of matrix products.

The programs are those of the CODA paper (arXiv 2605.19269): one GEMM, and an epilogue from five primitive classes.
"""

from typing import TYPE_CHECKING, Any

from coda_lang.errors import ArgumentError, BackendError, CodaError, Diagnostic
from coda_lang.version import VERSION as __version__

if TYPE_CHECKING:
    from coda_lang.api import Module, Program, Result, load, loads

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


def __getattr__(name: str) -> Any:
    """The interface is imported when it is first used: the command line's help and formatter need no NumPy."""
    if name not in __all__:
        raise AttributeError(f"module `coda_lang` has no attribute `{name}`")
    from coda_lang import api

    globals().update({n: getattr(api, n) for n in ("Module", "Program", "Result", "load", "loads")})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
