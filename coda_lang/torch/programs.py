"""Finds the `.coda` programs that the operations run, and loads each file once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from coda_lang.api import Module, load


def folder() -> Path:
    """Where the programs are: inside the installed package, or beside it in a checkout. Raises FileNotFoundError."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "programs", package.parent / "programs"):
        if (place / "linear.coda").is_file():
            return place
    raise FileNotFoundError(f"no programs in {package / 'programs'} or {package.parent / 'programs'}")


@cache
def module(name: str) -> Module:
    """The checked file `name`.coda."""
    return load(folder() / f"{name}.coda")
