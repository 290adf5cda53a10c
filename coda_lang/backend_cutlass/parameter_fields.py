"""The parameter block as it is collected, and as C text."""

from __future__ import annotations

from dataclasses import dataclass, field

from coda_lang.backend_cutlass.abi import CType, Field, Source
from coda_lang.backend_cutlass.functor import Text
from coda_lang.backend_cutlass.naming import joined
from coda_lang.errors import BackendError
from coda_lang.ir.types import Dim, DType


@dataclass
class Fields:
    """Collects the fields of the parameter block."""

    known: dict[str, tuple[CType, Source]] = field(default_factory=dict)

    def add(self, name: str, ctype: CType, source: Source) -> str:
        """The field as an expression of the kernel. Adding it again is allowed.

        Raises:
            BackendError: the name is taken by a field of another source: the kernel would read the wrong one.
        """
        found = self.known.setdefault(name, (ctype, source))
        if found != (ctype, source):
            text = f"two parameters of the generated kernel are named {name}: {found[1]} and {source}"
            raise BackendError(text, "this is a fault of coda_lang, not of the program: please report it")
        return f"block.{name}"

    def listed(self) -> list[tuple[str, CType, Source]]:
        """Descriptors first, the operands' foremost, then the rest."""
        maps = [(n, c, s) for n, (c, s) in self.known.items() if c == "TensorMap"]
        return maps + [(n, c, s) for n, (c, s) in self.known.items() if c != "TensorMap"]


def scalar_ctype(dtype: DType) -> CType:
    """How the block holds a scalar that is passed by value."""
    return "float" if dtype.kind == "float" else "int32_t" if dtype.kind == "bool" else "int64_t"


def extent_field(dim: Dim) -> str:
    """The name of an extent's field: ``length_N``, ``length1by2_N``, ``tilesof_1_N_x`` for tiles(N) of the input x."""
    if dim.axis is None:
        return joined("constant", str(dim.coef))
    up, down = dim.coef.numerator, dim.coef.denominator
    kind = ("tiles" if dim.tiled else "length") + ("" if dim.coef == 1 else f"{up}by{down}")
    return joined(kind, dim.axis) if dim.of is None else joined(f"{kind}of", dim.axis, dim.of)


def block_text(text: Text, fields: tuple[Field, ...], size: int) -> None:
    """The block as a C struct, its layout held to what the host writes."""
    text.add("struct alignas(64) Block {")
    for f in fields:
        text.add(f"  {'coda::TensorMap' if f.ctype == 'TensorMap' else f.ctype} {f.name};")
    text.add("};")
    checks = [f"sizeof(Block) == {size}", *(f"CODA_OFFSET(Block, {f.name}) == {f.offset}" for f in fields)]
    text.add("static_assert(" + "\n    && ".join(checks) + ");")
    text.add("")
