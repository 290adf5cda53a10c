"""Element types, axes and the types of values."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class DType:
    """An element type: ``kind`` is ``float``, ``int`` or ``bool``; ``bits`` its width in memory."""

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name


F32 = DType("f32", "float", 32)
F16 = DType("f16", "float", 16)
BF16 = DType("bf16", "float", 16)
F8E4M3 = DType("f8e4m3", "float", 8)
F8E5M2 = DType("f8e5m2", "float", 8)
I32 = DType("i32", "int", 32)
I64 = DType("i64", "int", 64)
BOOL = DType("bool", "bool", 8)

DTYPES = {t.name: t for t in (F32, F16, BF16, F8E4M3, F8E5M2, I32, I64, BOOL)}

# Inside a body there are three element types: a load widens what it reads exactly.
VALUE_DTYPE = {"float": F32, "int": I64, "bool": BOOL}


@dataclass(frozen=True)
class Dim:
    """One extent: ``coef · axis``, a constant (no axis), or ``tiles(axis)``.

    ``tiles(X)`` is the number of tiles of the accumulator along X, whatever the tile's size. In a reduce it
    is opaque and belongs to one input, named by ``of``: partials of two kernels may be tiled differently. In a block
    ``of`` names the step that made the partials.
    """

    coef: Fraction
    axis: str | None = None
    tiled: bool = False
    of: str | None = None

    def scaled(self, factor: Fraction | int) -> Dim:
        return Dim(self.coef * factor, self.axis, self.tiled, self.of)

    def __str__(self) -> str:
        if self.tiled:
            return f"tiles({Dim(self.coef, self.axis)})"
        if self.axis is None:
            return str(self.coef)
        up, down = self.coef.numerator, self.coef.denominator
        return ("" if up == 1 else f"{up}*") + self.axis + ("" if down == 1 else f"/{down}")


def axis_dim(name: str) -> Dim:
    return Dim(Fraction(1), name)


def const_dim(extent: int) -> Dim:
    return Dim(Fraction(extent))


def tiles_dim(axis: str) -> Dim:
    return Dim(Fraction(1), axis, tiled=True)


@dataclass(frozen=True)
class Type:
    """The type of a value: an element type and named extents, rows before columns."""

    dtype: DType
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"
