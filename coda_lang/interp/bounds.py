"""Running error analysis: what a program's results may differ by from those of exact arithmetic.

Walks a checked program and carries, beside each value in f64, a bound on the absolute error of the same value computed
in f32. Standard model (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., ch. 2-4):

- fl(x op y) = (x op y)(1 + δ), |δ| ≤ u = 2⁻²⁴; a transcendental is rounded once as well;
- a sum of n terms in any order: γₙ·Σ|xᵢ| with γₙ = n·u / (1 − n·u); so is a product's accumulator, with n = K (products
  of two 16-bit floats are exact in f32);
- a function that is monotone carries an error e at x to max|f(x ± e) − f(x)|; x·y to |x|·eʸ + |y|·eˣ + eˣ·eʸ;
- a store adds the unit roundoff of its format, or half its smallest subnormal.

An argument may come with the exact value that it stands for (`exact`): the difference is its error. So rounded
inputs, such as the stored output of an earlier kernel, are compared with an oracle that never rounds. With `gpu`, each
operation also has the error that the operation table states for the GPU; with `acc`, the accumulator is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coda_lang.ir.axes import Grid
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel, Param, Value
from coda_lang.ir.types import Dim

Array = NDArray[Any]

U = 2.0**-24
TINY = 2.0**-149
UNIT_ROUNDOFF = {"f32": U, "f16": 2.0**-11, "bf16": 2.0**-8, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
HALF_SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134, "f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17}
LARGEST_F8 = {"f8e4m3": 448.0, "f8e5m2": 57344.0}

MONOTONE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "sigmoid": special.expit,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
EXACT = ("idiv", "mod", "and", "or", "not", "min", "max", "abs", "neg")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


@dataclass
class Approx:
    """An exact value and a bound on the error of the computed one; for a bool, where it may come out the other way."""

    value: Array
    error: Array

    @property
    def size(self) -> Array:
        return np.abs(self.value) + self.error


def rounded(value: Array, error: Array) -> Approx:
    return Approx(value, error + U * (np.abs(value) + error) + np.where(error + np.abs(value) == 0, 0.0, TINY))


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
        self.kernel, self.tile, self.gpu, self.acc = kernel, tile, gpu, acc
        self.args = {n: np.asarray(v) for n, v in args.items()}
        self.exact = dict(exact or {})
        self.extents = self._extents()
        self.grid: Grid | None = None
        if kernel.kind != "reduce":
            assert kernel.rows is not None
            assert kernel.cols is not None
            split = next((s for s in kernel.splits if s.axis == kernel.cols.axis), None)
            self.grid = Grid(kernel.rows, kernel.cols, split)
        with np.errstate(all="ignore"):
            self.held: list[Approx] = []
            for value in kernel.values:
                self.held.append(self._evaluate(value))

    def output(self, name: str) -> Approx:
        """An output in f64, and the bound on |stored − exact|."""
        store = next(s for s in self.kernel.stores if s.target == name)
        target = self.kernel.target(name)
        held, dims = self.held[store.value], self.kernel.values[store.value].type.dims
        value, error = (self._spread(x, dims, target.dims) for x in (held.value, held.error))
        dtype = target.dtype if isinstance(target.dtype, str) else target.dtype.name
        if dtype not in UNIT_ROUNDOFF:
            dtype = self._storage(dtype)
        with np.errstate(all="ignore"):
            if store.accumulate:
                old = self.args[name].astype(np.float64)
                total = rounded(old + value, error)
                value, error = total.value, total.error
            if dtype in LARGEST_F8:  # a clamp brings two values no further apart
                value = np.clip(value, -LARGEST_F8[dtype], LARGEST_F8[dtype])
            if dtype != "f32":
                once = UNIT_ROUNDOFF[dtype] * (np.abs(value) + error)
                error = error + np.maximum(once, np.where(np.abs(value) + error == 0, 0.0, HALF_SUBNORMAL[dtype]))
        shape = tuple(self._length(d) for d in target.dims)
        return Approx(np.broadcast_to(value, shape), np.broadcast_to(error, shape))

    def _storage(self, parameter: str) -> str:
        """The element type that a dtype parameter stands for in this call."""
        names = {"bfloat16": "bf16", "float16": "f16"}
        return next(names[self.args[p.name].dtype.name] for p in self.kernel.params
                    if p.dtype == parameter and p.name in self.args)  # fmt: skip

    # -- extents and broadcasting --

    def _extents(self) -> dict[str, int]:
        extents = {n: int(v) for n, v in self.args.items() if n in self.kernel.axes}
        for p in self.kernel.params:
            if p.name in self.args:
                for dim, length in zip(p.dims, self.args[p.name].shape, strict=True):
                    if dim.axis is not None and not dim.tiled:
                        extents.setdefault(dim.axis, int(length / dim.coef))
        for s in self.kernel.splits:
            inner, outer = s.inner.axis, s.outer.axis
            if inner is not None and outer is not None:
                if inner in extents:
                    extents.setdefault(outer, extents[s.axis] // extents[inner])
                elif outer in extents:
                    extents.setdefault(inner, extents[s.axis] // extents[outer])
        return extents

    def _length(self, dim: Dim) -> int:
        if dim.axis is None:
            return int(dim.coef)
        if dim.tiled:
            assert self.grid is not None
            rows = dim.axis == self.grid.rows.axis
            return -(-self._length(self.grid.rows if rows else self.grid.cols) // self.tile[0 if rows else 1])
        return int(dim.coef * self.extents[dim.axis])

    def _spread(self, x: Array, have: tuple[Dim, ...], want: tuple[Dim, ...]) -> Array:
        """`x` with an axis for each extent of `want`: matched by name, heads widened, of length 1 elsewhere."""
        places = [want.index(d) if d in want else len(want) - 1 for d in have]
        x = x.transpose(np.argsort(places))
        for place in range(len(want)):
            if place not in places:
                x = np.expand_dims(x, place)
        for d in have:
            if d not in want:
                assert self.grid is not None
                copies = self._length(want[-1]) // x.shape[-1]
                x = np.tile(x, copies) if self.grid.part(d) == "inner" else np.repeat(x, copies, -1)
        return x

    # -- values --

    def _evaluate(self, v: Value) -> Approx:
        args = []
        for a in v.args:
            dims = self.kernel.values[a].type.dims
            x = self.held[a]
            if OPS[v.op].meaning is not None or v.op == "unpairs":
                want = v.type.dims
                if v.op == "unpairs":
                    want = (*want[:-1], want[-1].scaled(Fraction(1, 2)))
                x = Approx(self._spread(x.value, dims, want), self._spread(x.error, dims, want))
            args.append(x)
        method = getattr(self, f"_{v.op}", None)
        if method is not None:
            result: Approx = method(v, *args)
            return result
        if v.op in MONOTONE:
            return self._on_gpu(v.op, _monotone(MONOTONE[v.op], args[0]))
        if v.op in COMPARISONS:
            x, y = args
            doubt = (x.error + y.error > 0) & (np.abs(x.value - y.value) <= x.error + y.error)
            return Approx(OPS[v.op].meaning(x.value, y.value), doubt)  # type: ignore[misc]
        assert v.op in EXACT, v.op
        meaning = OPS[v.op].meaning
        assert meaning is not None
        error = np.zeros(())
        for x in args:  # exact functions that bring values no further apart; a bool's doubt joins
            error = np.logical_or(error, x.error) if v.op in ("and", "or", "not") else np.maximum(error, x.error)
        return Approx(meaning(*(x.value for x in args)), error)

    def _on_gpu(self, op: str, x: Approx) -> Approx:
        """Adds the GPU's own error of one evaluation. An ulp is at most 2u·|x|, or 2⁻¹⁴⁹ among the subnormals."""
        if not self.gpu:
            return x
        row = OPS[op]
        ulps = np.where(x.size == 0, 0.0, row.gpu_ulp * (2 * U * x.size + TINY))
        return Approx(x.value, x.error + ulps + row.gpu_abs)

    def _const(self, v: Value) -> Approx:
        """A number of few digits is exact in f32; one like 1/√2 was rounded to it."""
        number = np.full((1,) * len(v.type.dims), v.attr)
        if (
            number.dtype.kind != "f"
            or not np.isfinite(number).all()
            or (number.astype(np.float32).view(np.int32) & 0xFFF == 0).all()
        ):
            return _known(number)
        return Approx(number, U * np.abs(number))

    def _axis(self, v: Value) -> Approx:
        assert isinstance(v.attr, Dim)
        return _known(np.asarray(self._length(v.attr)))

    def _load(self, v: Value) -> Approx:
        assert isinstance(v.attr, str)
        param: Param = self.kernel.param(v.attr)
        if param.name not in self.args:
            number = np.full((1,) * len(param.dims), param.default)
            if number.dtype.kind != "f":
                return _known(number)
            return Approx(number, np.abs(number.astype(np.float32) - number))
        return self._argument(param.name)

    def _argument(self, name: str) -> Approx:
        given = self.args[name]
        if given.dtype.kind in "iub" and name not in self.exact:
            return _known(given)
        wide = given.astype(np.float64)
        exact = np.asarray(self.exact.get(name, wide), np.float64)
        if given.dtype == np.float64:  # a Python number: it is passed as f32
            wide = given.astype(np.float32).astype(np.float64)
        return Approx(exact, np.abs(wide - exact))

    def _acc(self, v: Value) -> Approx:
        if self.acc is not None:
            return _known(self.acc.astype(np.float64))
        p = self.kernel.product
        assert p is not None
        a, b = self._argument(p.a), self._argument(p.b)
        left = (a.value.T, a.error.T) if p.a_transposed else (a.value, a.error)
        right = (b.value.T, b.error.T) if p.b_transposed else (b.value, b.error)
        sizes = (np.abs(left[0]) + left[1]) @ (np.abs(right[0]) + right[1])
        carried = left[1] @ np.abs(right[0]) + np.abs(left[0]) @ right[1] + left[1] @ right[1]
        # Tensor cores cut the products' sum where the interpreter rounds: twice the unit.
        terms = left[0].shape[1] * (2 if self.gpu else 1)
        return Approx(left[0] @ right[0], carried + gamma(terms) * sizes)

    def _add(self, v: Value, x: Approx, y: Approx) -> Approx:
        return _arithmetic(x.value + y.value, x.error + y.error)

    def _sub(self, v: Value, x: Approx, y: Approx) -> Approx:
        return _arithmetic(x.value - y.value, x.error + y.error)

    def _mul(self, v: Value, x: Approx, y: Approx) -> Approx:
        carried = np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error
        return _arithmetic(x.value * y.value, np.where((x.error == 0) & (y.error == 0), 0.0, carried))

    def _div(self, v: Value, x: Approx, y: Approx) -> Approx:
        q = x.value / y.value
        room = np.abs(y.value) - y.error
        carried = (x.error + np.abs(q) * y.error) / room
        error = np.where((x.error == 0) & (y.error == 0), 0.0, np.where(room > 0, carried, np.inf))
        return self._on_gpu("div", rounded(q, error))

    def _select(self, v: Value, c: Approx, x: Approx, y: Approx) -> Approx:
        error = np.where(c.value, x.error, y.error)
        either = np.abs(x.value - y.value) + np.maximum(x.error, y.error)
        return Approx(np.where(c.value, x.value, y.value), np.where(c.error, either, error))

    def _to_f32(self, v: Value, x: Approx) -> Approx:
        return Approx(x.value.astype(np.float64), x.error.astype(np.float64))

    def _even(self, v: Value, x: Approx) -> Approx:
        return Approx(x.value[..., 0::2], x.error[..., 0::2])

    def _odd(self, v: Value, x: Approx) -> Approx:
        return Approx(x.value[..., 1::2], x.error[..., 1::2])

    def _unpairs(self, v: Value, x: Approx, y: Approx) -> Approx:
        def interleave(p: Array, q: Array) -> Array:
            p, q = np.broadcast_arrays(p, q)
            return np.stack([p, q], -1).reshape(*p.shape[:-1], 2 * p.shape[-1])

        return Approx(interleave(x.value, y.value), interleave(x.error, y.error))

    def _row(self, v: Value) -> Approx:
        return _known(np.arange(self._length(v.type.dims[0])))

    _col = _row

    def _gather(self, v: Value, index: Approx) -> Approx:
        assert isinstance(v.attr, str)
        table = self._argument(v.attr)
        return Approx(table.value[index.value], table.error[index.value])

    def _onehot(self, v: Value, index: Approx) -> Approx:
        return _known((np.arange(self._length(v.type.dims[-1]))[None, :] == index.value[:, None]).astype(np.float64))

    def _pick(self, v: Value, x: Approx, index: Approx, ignore: Approx | None = None) -> Approx:
        at = index.value
        skip = np.zeros(at.shape, bool) if ignore is None else at == ignore.value
        inside = (at >= 0) & (at < x.value.shape[1])
        rows, safe = np.arange(len(at)), np.where(inside, at, 0)
        value = np.where(skip, 0.0, np.where(inside, x.value[rows, safe], np.nan))
        return Approx(value, np.where(skip | ~inside, 0.0, np.broadcast_to(x.error, x.value.shape)[rows, safe]))

    # -- reductions --

    def _tiles(self, v: Value, x: Approx) -> tuple[int, list[Approx]]:
        """The argument cut into the tiles of the axis that the reduction runs along."""
        assert self.grid is not None
        over = v.attr[0] if isinstance(v.attr, tuple) else v.attr
        dims = self.kernel.values[v.args[0]].type.dims
        assert isinstance(over, Dim)
        axis = 0 if over.axis == self.grid.rows.axis else 1
        width = self.tile[0] if axis == 0 else int(self.tile[1] * self.grid.width(dims[1]))
        shape = tuple(self._length(d) for d in dims)
        value, error = np.broadcast_to(x.value, shape), np.broadcast_to(x.error, shape)
        cuts = range(width, shape[axis], width)
        return axis, [Approx(*p) for p in zip(np.split(value, cuts, axis), np.split(error, cuts, axis), strict=True)]

    def _by_tile(self, v: Value, x: Approx, reduce: Callable[[Approx, int], Approx]) -> Approx:
        axis, tiles = self._tiles(v, x)
        parts = [reduce(t, axis) for t in tiles]
        return Approx(np.stack([p.value for p in parts], axis), np.stack([p.error for p in parts], axis))

    def _tile_sum(self, v: Value, x: Approx) -> Approx:
        return self._by_tile(v, x, _sum)

    def _tile_max(self, v: Value, x: Approx) -> Approx:
        return self._by_tile(v, x, lambda t, axis: Approx(t.value.max(axis), t.error.max(axis)))

    def _tile_absmax(self, v: Value, x: Approx) -> Approx:
        return self._by_tile(v, x, lambda t, axis: Approx(np.abs(t.value).max(axis), t.error.max(axis)))

    def _segment_sum(self, v: Value, x: Approx) -> Approx:
        heads = self._length(v.type.dims[-1])
        split = [p.reshape(p.shape[0], heads, p.shape[1] // max(heads, 1)) for p in (x.value, x.error)]
        return _sum(Approx(*split), 2)

    def _tile_logsumexp(self, v: Value, x: Approx) -> Approx:
        """logsumexp changes by at most the largest change of its arguments. The computed one adds, on a sum of n terms
        that is at least 1: n·u/e from rounding x − max (t·e⁻ᵗ ≤ 1/e), 2u from each exp, γₙ from the sum; then two
        roundings."""

        def reduce(t: Approx, axis: int) -> Approx:
            n = t.value.shape[axis]
            value = special.logsumexp(t.value, axis=axis)
            relative = U * n / np.e + 2 * U + gamma(n)
            log = np.log(n) + 1
            finite = np.where(np.isneginf(t.value), 0.0, t.error).max(axis)
            return Approx(value, np.where(np.isinf(value), 0.0, finite + 2 * relative + U * log + U * np.abs(value)))

        return self._by_tile(v, x, reduce)

    def _tile_welford(self, v: Value, x: Approx) -> Approx:
        """∂M2/∂xᵢ = 2(xᵢ − mean), so errors eᵢ move M2 by at most Σ 2|xᵢ − mean|·eᵢ + Σ eᵢ²; the squares and their sum
        add γₙ₊₂."""
        assert isinstance(v.attr, tuple)
        part = v.attr[1]

        def reduce(t: Approx, axis: int) -> Approx:
            n = t.value.shape[axis]
            total = _sum(t, axis)
            mean = rounded(total.value / n, total.error / n)
            if part == "count":
                return _known(np.full(mean.value.shape, float(n)))
            if part == "mean":
                return mean
            away = np.abs(t.value - np.expand_dims(mean.value, axis))
            carried = (2 * away * t.error + t.error**2).sum(axis)
            return Approx((away**2).sum(axis), carried + gamma(n + 2) * ((away + t.error) ** 2).sum(axis))

        return self._by_tile(v, x, reduce)

    def _place(self, v: Value) -> int:
        assert isinstance(v.attr, Dim)
        return self.kernel.values[v.args[0]].type.dims.index(v.attr)

    def _reduce_sum(self, v: Value, x: Approx) -> Approx:
        return _sum(x, self._place(v))

    def _reduce_max(self, v: Value, x: Approx) -> Approx:
        axis = self._place(v)
        return Approx(x.value.max(axis), x.error.max(axis))

    def _reduce_min(self, v: Value, x: Approx) -> Approx:
        axis = self._place(v)
        return Approx(x.value.min(axis), x.error.max(axis))


def _known(value: Array) -> Approx:
    return Approx(value, np.zeros(value.shape, bool if value.dtype == np.bool_ else np.float64))


def _arithmetic(value: Array, error: Array) -> Approx:
    """Integers are exact; floats are rounded."""
    return _known(value) if value.dtype.kind == "i" else rounded(value, error)


def _sum(x: Approx, axis: int) -> Approx:
    value, error = np.broadcast_arrays(x.value, x.error)
    return Approx(value.sum(axis), error.sum(axis) + gamma(value.shape[axis]) * (np.abs(value) + error).sum(axis))


def _monotone(function: Callable[[Array], Array], x: Approx) -> Approx:
    value = function(x.value)
    sides = [np.abs(function(x.value + s * x.error) - value) for s in (-1, 1)]
    moved = np.where(x.error == 0, 0.0, np.maximum(*(np.where(np.isnan(s), np.inf, s) for s in sides)))
    return rounded(value, moved + 2.0**-50 * np.abs(value))
