"""The parameter block as C text."""

from __future__ import annotations

from coda_lang.backend_cutlass.abi import Field
from coda_lang.backend_cutlass.functor import Text


def block_text(text: Text, fields: tuple[Field, ...], size: int) -> None:
    """The block as a C struct, its layout held to what the host writes."""
    text.add("struct alignas(64) Block {")
    for f in fields:
        text.add(f"  {'coda::TensorMap' if f.ctype == 'TensorMap' else f.ctype} {f.name};")
    text.add("};")
    checks = [f"sizeof(Block) == {size}", *(f"CODA_OFFSET(Block, {f.name}) == {f.offset}" for f in fields)]
    text.add("static_assert(" + "\n    && ".join(checks) + ");")
    text.add("")
