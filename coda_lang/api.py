"""The Python interface: load files, and call what they define with arrays.

mod = coda.load("programs/rmsnorm_swiglu.coda")
out = mod.rmsnorm_swiglu(a=a, b=b, rstd=rstd)
out.z, out.y
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from coda_lang.errors import Diagnostic, UnknownNameError, did_you_mean
from coda_lang.ir import check
from coda_lang.ir.module import Module as CheckedModule
from coda_lang.ir.program import Block, Kernel
from coda_lang.program import Program, Result

if TYPE_CHECKING:
    from coda_lang.blocks.program import BlockProgram

__all__ = ["Module", "Program", "Result", "load", "loads", "program"]


def program(definition: Kernel | Block) -> Program | BlockProgram:
    """The callable form of a checked definition."""
    if not isinstance(definition, Block):
        return Program(definition)
    from coda_lang.blocks.program import BlockProgram  # most files have none, and a start is a few hundred milliseconds

    return BlockProgram(definition)


def load(path: str | os.PathLike[str]) -> Module:
    """Read and check a `.coda` file. Raises CodaError with every mistake in it, or OSError if it cannot be read."""
    return Module(check.check_file(path))


def loads(text: str, path: str = "<string>") -> Module:
    """Check a program given as text; `path` names it in messages, and imports are relative to it. Raises CodaError."""
    if not isinstance(text, str):
        raise TypeError(f"loads takes a str, got {type(text).__name__}")
    return Module(check.check_text(text, path))


class Module(Mapping[str, "Program | BlockProgram"]):
    """The kernels, maps, reduces and blocks of a file, as attributes and items, in the order of the file."""

    def __init__(self, checked: CheckedModule) -> None:
        self._programs = {name: program(d) for name, d in checked.programs.items()}
        self.path = checked.path
        self.doc = checked.doc
        self.warnings: tuple[Diagnostic, ...] = checked.warnings

    def __getitem__(self, name: str) -> Program | BlockProgram:
        found = self._programs.get(name)
        if found is None:
            raise UnknownNameError(self._unknown(name))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __getattr__(self, name: str) -> Program | BlockProgram:
        try:
            return self.__dict__["_programs"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def _unknown(self, name: object) -> str:
        known = self.__dict__.get("_programs", {})
        help = did_you_mean(str(name), known) or f"it has {', '.join(known) or 'none'}"
        return f"{self.__dict__.get('path')} has no kernel `{name}`: {help}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._programs]

    def __repr__(self) -> str:
        return f"<coda module {self.path}: {', '.join(self._programs)}>"
