"""The operation table: what the language can compute, stated once.

The checker, the constant folder, the interpreter, the formatter's keyword list and the reference page all
read it. Adding a map is one row here and one line in each table that has a row's meaning elsewhere: CUDA
(`backend_cutlass.cuda_ops`), the error analysis (`interp.map_bounds`) and PyTorch (`bench.torch_ops`); tests
fail until all have it, and until an independent oracle does (`tests/properties`).

`params` and `result` give the element kinds: F a float (f32), I an integer (i64), B a bool, N a float or an
integer, A anything; letters N and A mean the same kind at each of their places. `gpu_ulp` and `gpu_abs` bound the
GPU's error of one evaluation in f32 units in the last place, plus an absolute term; both 0 means bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coda_lang.ir import numerics

CLASSES = {
    0: "reduce bodies only",
    1: "maps",
    2: "vectors",
    3: "tiles",
    4: "tile reductions",
    5: "stateful transforms",
}


@dataclass(frozen=True)
class Op:
    name: str
    cls: int
    params: str
    result: str
    doc: str
    meaning: Callable[..., Any] | None = None  # None: needs the tile; `coda_lang.interp` has the function
    symbol: str | None = None  # an infix or prefix spelling
    callable: bool = True  # may be written as a call of this name
    identity: float | None = None  # of a reduction: what a lane outside the tile holds
    gpu_ulp: float = 0.0
    gpu_abs: float = 0.0
    summed: bool = False  # a sum is in it, whose order is not specified


_ROWS = (
    # -- class 1: maps over one element ------------------------------------------------------------------------
    Op("neg", 1, "N", "N", "−x: the sign flipped, also of zero and NaN", np.negative, "-", callable=False),
    Op("add", 1, "NN", "N", "x + y", np.add, "+", callable=False),
    Op("sub", 1, "NN", "N", "x − y", np.subtract, "-", callable=False),
    Op("mul", 1, "NN", "N", "x · y", np.multiply, "*", callable=False),
    Op("div", 1, "FF", "F", "x / y", np.divide, "/", callable=False, gpu_ulp=2),
    Op("idiv", 1, "II", "I", "⌊x / y⌋ of integers; 0 where y = 0", numerics.integer_divide),
    Op("mod", 1, "II", "I", "x − y·⌊x / y⌋ of integers; 0 where y = 0", numerics.modulo, "%"),
    Op("fma", 1, "FFF", "F", "x·y + z rounded once: the only contraction there is", numerics.fma),
    Op("min", 1, "NN", "N", "the smaller; NaN if either is; min(+0, −0) = −0", numerics.minimum),
    Op("max", 1, "NN", "N", "the larger; NaN if either is; max(+0, −0) = +0", numerics.maximum),
    Op("abs", 1, "N", "N", "|x|", np.abs),
    Op("eq", 1, "AA", "B", "x == y; false if either is NaN", np.equal, "==", callable=False),
    Op("ne", 1, "AA", "B", "x != y; true if either is NaN", np.not_equal, "!=", callable=False),
    Op("lt", 1, "NN", "B", "x < y; false if either is NaN", np.less, "<", callable=False),
    Op("le", 1, "NN", "B", "x <= y; false if either is NaN", np.less_equal, "<=", callable=False),
    Op("gt", 1, "NN", "B", "x > y; false if either is NaN", np.greater, ">", callable=False),
    Op("ge", 1, "NN", "B", "x >= y; false if either is NaN", np.greater_equal, ">=", callable=False),
    Op("and", 1, "BB", "B", "both", np.logical_and, "and", callable=False),
    Op("or", 1, "BB", "B", "either", np.logical_or, "or", callable=False),
    Op("not", 1, "B", "B", "negation", np.logical_not, "not", callable=False),
    Op("select", 1, "BAA", "A", "x where the condition holds, else y; what is not selected has no effect", np.where),
    Op("exp", 1, "F", "F", "eˣ; 0 at −inf", numerics.in_f64(np.exp), gpu_ulp=2, gpu_abs=2**-126),
    Op("exp2", 1, "F", "F", "2ˣ", numerics.in_f64(np.exp2), gpu_ulp=2, gpu_abs=2**-126),
    Op("log", 1, "F", "F", "ln x; −inf at ±0, NaN below", numerics.in_f64(np.log), gpu_ulp=3, gpu_abs=2**-21),
    Op("log2", 1, "F", "F", "log₂ x; −inf at ±0, NaN below", numerics.in_f64(np.log2), gpu_ulp=2, gpu_abs=2**-22),
    Op("log1p", 1, "F", "F", "ln(1 + x), accurate near 0", numerics.in_f64(np.log1p), gpu_ulp=2),
    Op("tanh", 1, "F", "F", "hyperbolic tangent", numerics.in_f64(np.tanh), gpu_ulp=4, gpu_abs=2**-126),
    Op("erf", 1, "F", "F", "error function", numerics.in_f64(numerics.erf), gpu_ulp=4, gpu_abs=2**-126),
    Op("erfc", 1, "F", "F", "1 − erf x, without its cancellation", numerics.erfc, gpu_ulp=52, gpu_abs=2**-40),
    Op("ndtr", 1, "F", "F", "Φ(x), the normal distribution's", numerics.ndtr, gpu_ulp=32, gpu_abs=2**-40),
    Op("sqrt", 1, "F", "F", "√x; NaN below 0", np.sqrt, gpu_ulp=2),
    Op("rsqrt", 1, "F", "F", "1 / √x; ±inf at ±0", numerics.in_f64(numerics.rsqrt), gpu_ulp=2),
    Op("sigmoid", 1, "F", "F", "1 / (1 + e⁻ˣ)", numerics.sigmoid, gpu_ulp=16, gpu_abs=2**-40),
    Op("to_f32", 1, "A", "F", "an integer rounded to f32, a bool as 0 or 1", None, callable=False),
    Op("round", 1, "F", "F", "round<dtype>(x): rounded as a store to dtype would, kept as f32", None, callable=False),
    # -- class 1: maps over the pair of columns (2j, 2j + 1) ---------------------------------------------------
    Op("even", 1, "A", "A", "columns 2j: the first result of pairs(x)", callable=False),
    Op("odd", 1, "A", "A", "columns 2j + 1: the second result of pairs(x)", callable=False),
    Op("unpairs", 1, "AA", "A", "columns x₀ y₀ x₁ y₁ …, of twice the width", None),
    # -- class 2: vectors and scalars --------------------------------------------------------------------------
    Op("const", 2, "", "A", "a number", callable=False),
    Op("axis", 2, "", "N", "the length of an axis, as a number", callable=False),
    Op("row", 2, "", "I", "row(): the absolute index of an element's row"),
    Op("col", 2, "", "I", "col(): the absolute index of an element's column"),
    Op("gather", 2, "I", "A", "table[index, ...]: row index[m] of a table; NaN outside it", callable=False),
    Op("pick", 2, "FI", "F", "pick(x, index): x[m, index[m]]; NaN for an index outside x, 0 for index = ignore"),
    Op("onehot", 2, "I", "F", "onehot(index): 1 where the column is index[m], else 0"),
    # -- class 3: tiles; a load of a vector or a scalar is class 2 ---------------------------------------------
    Op("load", 3, "", "A", "the element of an input", callable=False),
    Op("acc", 3, "", "F", "the unrounded f32 accumulator", callable=False),
    # -- class 4: one partial for each output tile -------------------------------------------------------------
    Op("tile_sum", 4, "F", "F", "Σ over the tile, along `over`", identity=0.0, summed=True),
    Op("tile_max", 4, "F", "F", "the largest of the tile, along `over`; NaN if any is", identity=-np.inf),
    Op("tile_absmax", 4, "F", "F", "the largest |x| of the tile, along `over`; NaN if any is", identity=0.0),
    Op("segment_sum", 4, "F", "F", "Σ over each run of D columns: N = H * D, over=D", identity=0.0, summed=True),
    # -- class 5: a state carried across the columns of a tile -------------------------------------------------
    Op("tile_logsumexp", 5, "F", "F", "ln Σ eˣ over the tile, by a running max and sum", identity=-np.inf, summed=True),
    Op("tile_welford", 5, "F", "F", "count, mean and Σ(x − mean)² of the tile: three results", summed=True),
    # -- reduce bodies -----------------------------------------------------------------------------------------
    Op("reduce_sum", 0, "F", "F", "sum(x, over=axis)", callable=False, identity=0.0, summed=True),
    Op("reduce_max", 0, "F", "F", "max(x, over=axis); NaN if any; −inf of nothing", callable=False, identity=-np.inf),
    Op("reduce_min", 0, "F", "F", "min(x, over=axis); NaN if any; +inf of nothing", callable=False, identity=np.inf),
)
OPS = {op.name: op for op in _ROWS}
assert len(OPS) == len(_ROWS)

# Results that belong to the whole tile: in the same kernel they may only be stored.
TILE_RESULTS = frozenset(
    {"tile_sum", "tile_max", "tile_absmax", "segment_sum", "tile_logsumexp", "tile_welford", "pick"}
)
WELFORD_PARTS = ("count", "mean", "m2")
REDUCTIONS = {"sum": "reduce_sum", "max": "reduce_max", "min": "reduce_min"}
