"""What a call asks of a schedule: its shape, and the epilogue's work for each element of the accumulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_lang.backend_cutlass.config import Footprint
from coda_lang.backend_cutlass.shapes import grid_of
from coda_lang.binding import Binding
from coda_lang.cost import cost
from coda_lang.ir.program import Kernel, dtype_of
from coda_lang.ir.types import Dim, DType

# Instructions of one evaluation on the GPU, counted from `cuda_ops.CUDA` and its helpers; what is not named takes one.
INSTRUCTIONS = {
    "const": 0, "axis": 0, "acc": 0, "load": 0, "row": 0, "col": 0, "even": 0, "odd": 0, "unpairs": 0,
    "div": 8, "idiv": 16, "mod": 16, "round": 2, "exp": 4, "exp2": 3, "log": 6, "log2": 6, "log1p": 12, "tanh": 12,
    "erf": 20, "erfc": 17, "ndtr": 15, "sqrt": 6, "rsqrt": 5, "sigmoid": 8, "gather": 6, "pick": 2,
    "tile_logsumexp": 12, "tile_welford": 6,
}  # fmt: skip
_ROW_VECTOR = 24.0  # registers of a thread for 32 columns of one
# Registers of a thread for what an operation carries from column to column, or keeps until it is done.
_STATE = {
    "gather": 8,
    "tile_sum": 4,
    "tile_max": 4,
    "tile_absmax": 4,
    "tile_logsumexp": 32,
    "tile_welford": 8,
    "pick": 4,
}
_NOMINAL_TILE = (128, 256)  # for the bytes of partials: too few for the tile to matter


@dataclass(frozen=True)
class Problem:
    """`moved` are bytes that the epilogue loads and stores, `weight` the instructions that it takes, both for each
    element of the accumulator [rows, cols]; `held` registers of a thread beside the accumulators, for 32 columns, and
    `tables` those of them that are for rows of tables;
    `segment` columns must not be cut by a tile (1: any may).
    """

    rows: int
    cols: int
    contracted: int
    need: Footprint = field(default_factory=Footprint)
    moved: float = 2.0
    weight: float = 0.0
    held: float = 0.0
    segment: int = 1
    operand_bytes: int = 2
    tables: float = 0.0

    @property
    def flops(self) -> int:
        """Of the product."""
        return 2 * self.rows * self.cols * self.contracted

    @property
    def bytes(self) -> float:
        """Each array moved once."""
        operands = (self.rows + self.cols) * self.contracted * self.operand_bytes
        return operands + self.moved * self.rows * self.cols


def problem(binding: Binding, need: Footprint) -> Problem:
    """The problem of a call, whose kernel `specialise` made and has a product."""
    kernel = binding.kernel
    assert kernel.product is not None
    assert kernel.rows is not None
    assert kernel.cols is not None
    rows, cols = binding.length(kernel.rows), binding.length(kernel.cols)
    work = cost(binding, _NOMINAL_TILE)
    operands = {kernel.product.a, kernel.product.b}
    moved = sum(work.writes.values()) + sum(b for n, b in work.reads.items() if n not in operands)
    split = grid_of(kernel).split
    uncut = split is not None and any(v.op == "segment_sum" for v in kernel.values)
    return Problem(
        rows,
        cols,
        binding.length(kernel.product.contracted),
        need,
        moved / max(1, rows * cols),
        weight(kernel),
        held(kernel, binding.dtypes),
        binding.length(split.inner) if uncut and split is not None else 1,
        binding.dtype(kernel.param(kernel.product.a)).bits // 8,
        for_tables(kernel),
    )


def weight(kernel: Kernel) -> float:
    """Instructions of the epilogue for each element of the accumulator. What varies along rows alone is done once for
    each row of a thread, and does not count.
    """
    grid = grid_of(kernel)

    def width(dims: tuple[Dim, ...]) -> float:
        column = grid.col_of(dims)
        return 0.0 if column is None or column.tiled else float(grid.width(column))

    total = 0.0
    for value in kernel.values:
        reads = [kernel.values[a].type.dims for a in value.args]
        along = max((width(d) for d in (value.type.dims, *reads)), default=0.0)
        total += INSTRUCTIONS.get(value.op, 1) * along
    return total + sum(width(kernel.target(s.target).dims) for s in kernel.stores)  # a conversion each


def held(kernel: Kernel, dtypes: Mapping[str, DType]) -> float:
    """Registers that a thread holds through 32 columns of an epilogue, roughly: what it loads, widened, and what it
    stores, packed; of row vectors more, since the compiler loads those of later columns ahead.
    """
    grid = grid_of(kernel)
    operands = {kernel.product.a, kernel.product.b} if kernel.product is not None else set()

    def registers(dims: tuple[Dim, ...], bits: int) -> float:
        row, column = grid.row_of(dims), grid.col_of(dims)
        words = bits / 32
        if column is not None and not column.tiled:
            if row is None and len(dims) == 2:
                return 0.0  # a table, whose rows are gathered
            return (16.0 if row is not None else _ROW_VECTOR) * float(grid.width(column)) * words
        return 2.0 * words if row is not None else 1.0

    # An index is compared in 32 bits, whatever it is loaded as.
    loads = sum(registers(p.dims, 32) for p in kernel.params if p.name not in operands)
    values = [v for v in kernel.values if v.op in _STATE]
    return (
        loads
        + sum(registers(o.dims, dtype_of(o, dtypes).bits) for o in kernel.outputs)
        + sum(_STATE[v.op] for v in values)
    )


def for_tables(kernel: Kernel) -> float:
    """Registers that a thread holds for rows of tables."""
    return float(sum(_STATE[v.op] for v in kernel.values if v.op == "gather"))


def is_long(weight: float, held: float) -> bool:
    """Whether straight-line code of an epilogue for all parts of a tile would take minutes to compile, and spill.

    Those of `programs/` end at a weight of 53, and at 89 registers.
    """
    return weight > 64 or held > 96
