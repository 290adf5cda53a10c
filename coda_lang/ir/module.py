"""What a checked file offers: kernels, functions and constants by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from coda_lang.errors import Diagnostic
from coda_lang.ir.program import Block, Definition, Kernel, Number
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


Entity = Constant | FunctionEntity | Kernel | Block


@dataclass(eq=False)
class Scope:
    """The top-level names of one file; ``poisoned`` ones have an error of their own already.

    Kernels cannot be called from a body, so a kernel may have the name of a built-in function: calls look past it.
    """

    names: dict[str, Entity] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    poisoned: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)  # declared ones, checked or not
    recursive: set[str] = field(default_factory=set)  # functions that call themselves, which is reported
    builtins: Scope | None = None

    def function(self, name: str) -> FunctionEntity | None:
        """The function that a call of `name` means."""
        entity = self.names.get(name)
        if isinstance(entity, FunctionEntity):
            return entity
        return self.builtins.function(name) if self.builtins is not None else None

    def functions(self) -> list[str]:
        own = [n for n, e in self.names.items() if isinstance(e, FunctionEntity)]
        return own + (self.builtins.functions() if self.builtins is not None else [])


@dataclass(frozen=True, eq=False)
class Module:
    path: str
    doc: str | None
    scope: Scope
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def programs(self) -> dict[str, Kernel | Block]:
        """Kernels, maps, reduces and blocks, in the order of the file."""
        found = {name: e for name, e in self.scope.names.items() if isinstance(e, Definition)}
        return dict(sorted(found.items(), key=lambda item: self._place(item[0])))

    @property
    def kernels(self) -> dict[str, Kernel]:
        return {name: e for name, e in self.programs.items() if isinstance(e, Kernel)}

    def _place(self, name: str) -> int:
        return self.scope.places[name].start if name in self.scope.places else 0
