"""Running error analysis: what a program's results may differ by from those of exact arithmetic.

Walks a checked program and carries, beside each value in f64, a bound on the absolute error of the same value computed
in f32. The rules are in `map_bounds` and `reduction_bounds`; values are only moved about by the interpreter's own
operations. A store adds the unit roundoff of its format, or half its smallest subnormal.

An argument may come with the exact value that it stands for (`exact`): the difference is its error. So rounded
inputs, such as the stored output of an earlier kernel, are compared with an oracle that never rounds. With `gpu`, each
operation also has the error that the operation table states for the GPU; with `acc`, the accumulator is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coda_lang import binding as bindings
from coda_lang.binding import Shape
from coda_lang.interp import map_bounds, reduction_bounds
from coda_lang.interp.approx import Approx, Array, U, gamma, known, rounded, settled
from coda_lang.interp.evaluate import Schedule, align
from coda_lang.interp.operations import OPERATIONS, Context, full, spread
from coda_lang.ir.axes import Grid
from coda_lang.ir.numerics import STORAGE
from coda_lang.ir.ops import OPS
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel, Param, Value
from coda_lang.ir.types import BOOL, F32, Dim, DType

__all__ = ["Analysis", "Approx", "Array", "U", "gamma"]

UNIT_ROUNDOFF = {"f32": U, "f16": 2.0**-11, "bf16": 2.0**-8, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
HALF_SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134, "f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17}
LARGEST_F8 = {"f8e4m3": 448.0, "f8e5m2": 57344.0}

_MOVES = ("load", "row", "col", "even", "odd", "unpairs", "gather", "pick", "onehot")
_INDICES = {"gather": (0,), "pick": (1, 2), "onehot": (0,)}  # which arguments say where from
_REDUCE = {
    "reduce_sum": reduction_bounds.total,
    "reduce_max": reduction_bounds.largest,
    "reduce_min": reduction_bounds.smallest,
}
_TILE = {
    "tile_sum": reduction_bounds.total,
    "tile_max": reduction_bounds.largest,
    "tile_absmax": reduction_bounds.largest_size,
}


class Analysis:
    """The exact values and bounds of one call's outputs, before and after each store."""

    def __init__(
        self,
        kernel: Kernel,
        args: Mapping[str, Any],
        exact: Mapping[str, Array] | None = None,
        tile: tuple[int, int] = (128, 256),
        *,
        gpu: bool = False,
        acc: Array | None = None,
    ) -> None:
        """Raises ArgumentError for arguments that are no legal call.

        Args:
            kernel: checked; optional inputs that are not in `args` become their defaults.
            args: inputs as NumPy arrays and numbers, and axis lengths by name. With `acc`, the product's may be absent.
            exact: what inputs stand for, f64 arrays.
            tile: rows and columns of the tiles that partials are made for.
            gpu: grant the errors that the operation table states for the GPU.
            acc: the accumulator that was used, f32[rows, columns].
        """
        self.gpu, self.acc = gpu, acc
        self.args = {n: np.asarray(v) for n, v in args.items()}
        names = {p.name for p in kernel.params}
        if any(p.name not in self.args and p.default is not None for p in kernel.params):
            passed = frozenset(names & set(self.args))
            kernel = specialise(kernel, passed, frozenset(o.name for o in kernel.outputs))
        self.kernel = kernel
        self.binding = self._bind()
        read = [self._argument(p, exact or {}) for p in kernel.params if p.name in self.args]
        inputs = {n: x for n, x, _ in read}, {n: e for n, _, e in read}
        grid = None
        if kernel.rows is not None and kernel.cols is not None:
            split = next((s for s in kernel.splits if s.axis == kernel.cols.axis), None)
            grid = Grid(kernel.rows, kernel.cols, split)
        rows = self.binding.length(kernel.rows) if kernel.rows is not None else 0
        self.values = Context(self.binding, grid, tile, np.float64, inputs[0], 0, rows)
        self.errors = replace(self.values, inputs=inputs[1])
        self.held: dict[int, Approx] = {}
        schedule = Schedule.of(kernel)
        with np.errstate(all="ignore"):
            for i, value in enumerate(kernel.values):
                self.held[i] = _shaped(self._evaluate(value))
                for a in schedule.last_use[i]:
                    del self.held[a]

    def output(self, name: str) -> Approx:
        """An output before its store rounds it (f64, i64 or bool), and the bound on |stored − exact|."""
        store = next(s for s in self.kernel.stores if s.target == name)
        target = self.kernel.target(name)
        dtype = self.binding.dtype(target)
        shape = self.binding.shape(target, self.values.tile)
        placed = self._placed(self.held[store.value], self.kernel.values[store.value].type.dims, target.dims)
        value, error = (np.broadcast_to(x, shape) for x in (placed.value, placed.error))
        with np.errstate(all="ignore"):
            if dtype.kind != "float":
                return Approx(value.astype(STORAGE[dtype.name]), np.where(error > 0, np.inf, 0.0))
            if store.accumulate:
                old = Approx(self.values.inputs[name], self.errors.inputs[name])
                total = map_bounds.mapped("add", [old, Approx(value, error)], gpu=self.gpu)
                value, error = total.value, total.error
            return _stored(value, error, dtype.name)

    def _placed(self, x: Approx, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Approx:
        """A value with the axes of an output, of length 1 where it does not vary."""
        grid = self.values.grid
        if grid is None:
            return Approx(align(x.value, dims, wanted), align(x.error, dims, wanted))
        value, error = (spread(self.values, y, dims, wanted) for y in (x.value, x.error))
        if len(wanted) == 2:
            return Approx(value, error)
        by_row = grid.part(wanted[0]) == "row"
        return Approx(*(y[:, 0] if by_row else y[:1].reshape(-1) for y in (value, error)))

    # -- the call --

    def _bind(self) -> bindings.Binding:
        kernel = self.kernel
        shapes = {}
        for p in kernel.params:
            if p.name in self.args and not p.host:
                shapes[p.name] = Shape(self.args[p.name].shape, _type_name(p, self.args[p.name]))
        axes = {n: int(x) for n, x in self.args.items() if n in kernel.axes}
        if self.acc is not None and kernel.rows is not None and kernel.cols is not None:
            for dim, length in zip((kernel.rows, kernel.cols), self.acc.shape, strict=True):
                if dim.axis is not None:
                    axes.setdefault(dim.axis, int(length / dim.coef))
        binding = bindings.bind(kernel, shapes, axes)
        for parameter in kernel.dtypes:  # of a product whose operands `acc` replaces
            binding.dtypes.setdefault(parameter.name, parameter.choices[0])
        return binding

    def _argument(self, p: Param, exact: Mapping[str, Array]) -> tuple[str, Array, Array]:
        """An input's name, exact value and error."""
        given = self.args[p.name]
        kind = self.binding.dtype(p).kind
        if kind != "float":
            whole = given.astype(np.bool_ if kind == "bool" else np.int64)
            return p.name, whole, np.zeros(whole.shape)
        with np.errstate(all="ignore"):
            # A Python number is passed as f32.
            passed = given.astype(np.float32) if given.dtype.kind not in "fV" or given.dtype.itemsize > 4 else given
            wide = passed.astype(np.float64)
            value = np.asarray(exact.get(p.name, given.astype(np.float64)), np.float64)
            same = (value == wide) | (np.isnan(value) & np.isnan(wide))
            error = np.zeros(wide.shape) if same.all() else np.where(same, 0.0, np.abs(wide - value))
        return p.name, value, error

    # -- values --

    def _evaluate(self, v: Value) -> Approx:
        args = [self.held[a] for a in v.args]
        types = [self.kernel.values[a].type.dims for a in v.args]
        if OPS[v.op].meaning is not None:
            met = [Approx(*(self._meet(y, d, v.type.dims) for y in (x.value, x.error)))
                   for x, d in zip(args, types, strict=True)]  # fmt: skip
            return map_bounds.mapped(v.op, met, gpu=self.gpu)
        args = [Approx(*(full(self.values, y, d) for y in (x.value, x.error)))
                for x, d in zip(args, types, strict=True)]  # fmt: skip
        if v.op in ("const", "axis"):
            return self._number(v)
        if v.op == "acc":
            return self._accumulator()
        if v.op == "to_f32":
            return map_bounds.to_f32(args[0])
        if v.op == "round":
            assert isinstance(v.attr, DType)
            return map_bounds.round_as(args[0], v.attr.name)
        if v.op in _MOVES:
            return self._moved(v, args)
        return self._reduced(v, args[0])

    def _meet(self, x: Array, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> Array:
        return align(x, dims, wanted) if self.values.grid is None else spread(self.values, x, dims, wanted)

    def _number(self, v: Value) -> Approx:
        """A number of few digits is exact in f32; one like 1/√2 was rounded to it."""
        number = OPERATIONS[v.op](self.values, v, [])
        if v.type.dtype != F32:
            return known(number)
        few = (number.astype(np.float32).view(np.int32) & 0xFFF) == 0
        near = rounded(number, np.zeros(number.shape))
        return near if v.op == "axis" else Approx(near.value, near.error + np.where(few, 0.0, U * np.abs(number)))

    def _accumulator(self) -> Approx:
        if self.acc is not None:
            return known(self.acc.astype(np.float64))
        p = self.kernel.product
        assert p is not None
        sides = []
        for name, transposed in ((p.a, p.a_transposed), (p.b, p.b_transposed)):
            x = Approx(self.values.inputs[name], self.errors.inputs[name])
            sides.append(Approx(x.value.T, x.error.T) if transposed else x)
        return reduction_bounds.product(*sides, gpu=self.gpu)

    def _moved(self, v: Value, args: list[Approx]) -> Approx:
        """An operation that only says where its elements come from: their errors come from there too."""
        operation = OPERATIONS[v.op]
        value = operation(self.values, v, [x.value for x in args])
        if v.op in ("row", "col"):
            return known(value)
        at = _INDICES.get(v.op, ())
        if v.op == "onehot":
            error = np.zeros(value.shape)
        else:
            error = operation(self.errors, v, [x.value if i in at else x.error for i, x in enumerate(args)])
        if v.type.dtype == BOOL:
            error = error.astype(np.bool_)
        if at:
            error = np.where(np.isnan(error), 0.0, error)  # an index outside gives NaN for sure
        for x in (x for i, x in enumerate(args) if i in at):
            error = np.where(x.sure, error, np.inf)
        return Approx(value, error)

    # -- reductions --

    def _reduced(self, v: Value, x: Approx) -> Approx:
        dims = self.kernel.values[v.args[0]].type.dims
        if v.op in _REDUCE:
            assert isinstance(v.attr, Dim)
            return _REDUCE[v.op](reduction_bounds.moved_last(x, dims.index(v.attr)))
        if v.op == "segment_sum":
            rows, columns = x.value.shape
            heads = self.values.length(v.type.dims[1])
            shape = (rows, heads, columns // heads if heads else 0)
            return reduction_bounds.total(Approx(x.value.reshape(shape), x.error.reshape(shape)))
        axis, width = self._tiles(v, dims)

        def reduce(part: Approx) -> Approx:
            if v.op == "tile_logsumexp":
                return reduction_bounds.logsumexp(part, gpu=self.gpu)
            if v.op == "tile_welford":
                assert isinstance(v.attr, tuple)
                return reduction_bounds.welford(part, v.attr[1], gpu=self.gpu)
            return _TILE[v.op](part)

        return reduction_bounds.by_tile(x, axis, width, reduce)

    def _tiles(self, v: Value, dims: tuple[Dim, ...]) -> tuple[int, int]:
        """The axis that a tile reduction runs along, and the tile's width in elements of its argument."""
        grid, over = self.values.grid, v.attr[0] if isinstance(v.attr, tuple) else v.attr
        assert grid is not None
        assert isinstance(over, Dim)
        if over.axis == grid.rows.axis:
            return 0, self.values.tile[0]
        return 1, int(self.values.tile[1] * grid.width(dims[1]))


def _stored(value: Array, error: Array, dtype: str) -> Approx:
    """One rounding to a storage type. What overflows it stays the number that it was."""
    if dtype in LARGEST_F8:  # a clamp brings two values no further apart
        value = np.clip(value, -LARGEST_F8[dtype], LARGEST_F8[dtype])
    if dtype == "f32":
        return Approx(value, error)
    certain = (error == 0) & (~np.isfinite(value) | (value.astype(STORAGE[dtype]).astype(np.float64) == value))
    once = np.maximum(UNIT_ROUNDOFF[dtype] * (np.abs(value) + error), HALF_SUBNORMAL[dtype])
    return settled(value, np.where(certain, 0.0, error + once))


def _shaped(x: Approx) -> Approx:
    value = np.asarray(x.value)  # NumPy makes scalars of arrays without axes
    return Approx(value, np.broadcast_to(x.error, value.shape))


def _type_name(p: Param, given: Array) -> str:
    """An argument's element type; that of the signature for a Python number."""
    if isinstance(p.dtype, DType) and not p.dims:
        return p.dtype.name
    return next((n for n, t in STORAGE.items() if t == given.dtype), str(given.dtype))
