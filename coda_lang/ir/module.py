"""What a checked file offers: kernels, functions and constants by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from coda_lang.errors import Diagnostic
from coda_lang.ir.program import Kernel, Number
from coda_lang.parser.syntax import Function
from coda_lang.source import Span


@dataclass(frozen=True, eq=False)
class Constant:
    name: str
    value: Number
    span: Span


@dataclass(frozen=True, eq=False)
class FunctionEntity:
    """A pure function and the file whose names its body sees."""

    function: Function
    scope: Scope


Entity = Constant | FunctionEntity | Kernel


@dataclass(eq=False)
class Scope:
    """The top-level names of one file; ``poisoned`` ones have an error of their own already."""

    names: dict[str, Entity] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    poisoned: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Module:
    path: str
    doc: str | None
    scope: Scope
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def kernels(self) -> dict[str, Kernel]:
        return {name: e for name, e in self.scope.names.items() if isinstance(e, Kernel)}
