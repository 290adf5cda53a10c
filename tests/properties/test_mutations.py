"""Would anything notice? Each operation's meaning is replaced by plausible wrong ones, and some check must fail.

The checks are the oracles of `rows` and random programs held against `evaluator`, with few rows in a strip and NaN,
infinities and signed zeros in the data: a small part of what the other tests do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from evaluator import Expected, evaluate
from rows import check_row, kinds_of

import coda_lang as coda
from coda_lang.interp import operations, run
from coda_lang.interp.operations import OPERATIONS
from coda_lang.ir import numerics
from coda_lang.ir.ops import OPS
from programs import RandomCall, random_call, random_program

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

SEEDS = range(150)


# -- the checks --------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A program, a call of it, and what must come out."""

    program: coda.Program
    call: RandomCall
    expected: dict[str, Expected]
    uses: frozenset[str]

    def right(self) -> bool:
        try:
            got = self.program.interpret(**self.call.copy(), tile=self.call.tile, outputs=self.call.outputs)
            for name, array in got.items():
                self.expected[name].check(array)
        except Exception:  # a wrong shape, for one
            return False
        return True


@cache
def cases() -> list[Case]:
    found = []
    for seed in SEEDS:
        text = random_program(seed, "exact" if seed % 3 else "any")
        program = coda.loads(text).program
        mode = ("integers", "special", "normal")[seed % 3]
        call = random_call(program.ir, seed, mode, lengths=(0, 1, 4, 6, 8, 10, 11))
        expected = evaluate(text, call.copy(), call.tile)
        program.interpret(
            **call.copy(), tile=call.tile, outputs=call.outputs
        )  # specialised, and folded, before mutation
        found.append(Case(program, call, expected, frozenset(v.op for v in program.ir.values)))
    return found


@pytest.fixture(autouse=True)
def _strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STRIP_ELEMENTS", 8)
    monkeypatch.setattr(run, "WORKERS", 1)


def noticed(op: str | None) -> bool:
    """Whether a check fails; only those that `op` takes part in are run."""
    if op is not None and OPS[op].meaning is not None:
        try:
            for kinds in kinds_of(OPS[op]):
                check_row(op, kinds, 10)
        except AssertionError:
            return True
    return any(not case.right() for case in cases() if op is None or op in case.uses)


# -- wrong meanings of maps --------------------------------------------------------------------------------------------


def original(name: str) -> Function:
    meaning = OPS[name].meaning
    assert meaning is not None
    return meaning


def nudged(y: Any) -> Array:
    """The next number up, or the opposite."""
    y = np.asarray(y)
    if y.dtype.kind == "b":
        return ~y
    return y + 1 if y.dtype.kind == "i" else np.nextafter(y, y.dtype.type(np.inf))


def in_f32(function: Function) -> Function:
    """Evaluated in f32, as a vector library would."""
    return lambda x: function(x.astype(np.float32)).astype(x.dtype)


def of_size(function: Function) -> Function:
    """The sign is lost."""
    return lambda x: function(np.abs(x))


def flushed(function: Function) -> Function:
    """Subnormal results become 0."""

    def flush(*args: Array) -> Array:
        y = np.asarray(function(*args))
        return np.where(np.abs(y) < 2.0**-126, y * 0, y) if y.dtype.kind == "f" else y

    return flush


MAPS: dict[str, dict[str, Function]] = {
    "neg": {"0 − x": lambda x: 0 - x},
    "add": {"only x": lambda x, y: x + 0 * y, "−": np.subtract},
    "sub": {"swapped": lambda x, y: y - x, "+": np.add},
    "mul": {"+": np.add, "flushes": flushed(np.multiply)},
    "div": {"swapped": lambda x, y: y / x, "times the reciprocal": lambda x, y: x * (1 / y),
            "flushes": flushed(np.divide)},
    "idiv": {"towards 0": lambda x, y: numerics.integer_divide(abs(x), abs(y)) * np.sign(x) * np.sign(y),
             "−1 by 0": lambda x, y: np.where(y == 0, -1, numerics.integer_divide(x, y))},
    "mod": {"of x's sign": lambda x, y: np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y))),
            "x by 0": lambda x, y: np.where(y == 0, x, numerics.modulo(x, y))},
    "fma": {"rounded twice": lambda x, y, z: x * y + z,
            "by way of f64": lambda x, y, z: (x.astype(float) * y.astype(float) + z.astype(float)).astype(np.float32),
            "x + y·z": lambda x, y, z: numerics.fma(y, z, x)},
    "min": {"NaN loses": np.fmin, "max": numerics.maximum,
            "min(+0, −0) is the second": lambda x, y: np.where(x == y, y, numerics.minimum(x, y))},
    "max": {"NaN loses": np.fmax, "min": numerics.minimum,
            "max(+0, −0) is the second": lambda x, y: np.where(x == y, y, numerics.maximum(x, y))},
    "abs": {"−0 stays": lambda x: np.where(x < 0, -x, x), "nothing": lambda x: x},
    "eq": {"NaN == NaN": lambda x, y: (x == y) | ((x != x) & (y != y)),
           "of f16": lambda x, y: np.float16(x) == np.float16(y)},
    "ne": {"NaN != NaN is false": lambda x, y: (x < y) | (x > y)},
    "lt": {"not ≥": lambda x, y: ~(x >= y), "≤": np.less_equal},
    "le": {"not >": lambda x, y: ~(x > y), "<": np.less},
    "gt": {"not ≤": lambda x, y: ~(x <= y), "≥": np.greater_equal},
    "ge": {"not <": lambda x, y: ~(x < y), ">": np.greater},
    "and": {"or": np.logical_or, "only x": lambda x, y: x & (y | True)},
    "or": {"xor": np.logical_xor, "and": np.logical_and},
    "not": {"nothing": lambda x: x},
    "select": {"swapped": lambda c, x, y: np.where(c, y, x), "a sum": lambda c, x, y: c * x + ~c * y},
    "exp": {"f32": in_f32(np.exp), "flushes": flushed(original("exp")), "2ˣ": numerics.in_f64(np.exp2)},
    "exp2": {"flushes": flushed(original("exp2")), "eˣ": numerics.in_f64(np.exp)},
    "log": {"of |x|": of_size(original("log")), "f32": in_f32(np.log)},
    "log2": {"ln": numerics.in_f64(np.log), "of |x|": of_size(original("log2"))},
    "log1p": {"ln(1 + x)": numerics.in_f64(lambda x: np.log(1 + x)), "ln": numerics.in_f64(np.log)},
    "tanh": {"f32": in_f32(np.tanh), "by exp": numerics.in_f64(lambda x: 1 - 2 / (np.exp(2 * x) + 1))},
    "erf": {"1 − erfc": numerics.in_f64(lambda x: 1 - numerics.erfc(x)), "tanh": numerics.in_f64(np.tanh)},
    "erfc": {"1 − erf": numerics.in_f64(lambda x: 1 - numerics.erf(x))},
    "ndtr": {"by erf": numerics.in_f64(lambda x: 0.5 + 0.5 * numerics.erf(x * 0.5**0.5)),
             "of −x": lambda x: numerics.ndtr(-x)},
    "sqrt": {"of |x|": of_size(np.sqrt), "x·rsqrt": lambda x: x / np.sqrt(x)},
    "rsqrt": {"of |x|": of_size(original("rsqrt")), "f32": lambda x: 1 / np.sqrt(x)},
    "sigmoid": {"by eˣ": numerics.in_f64(lambda x: np.exp(x) / (1 + np.exp(x))),
                "by tanh in f32": lambda x: (0.5 + 0.5 * np.tanh(0.5 * x)).astype(x.dtype),
                "f32": lambda x: 1 / (1 + np.exp(-x))},
}  # fmt: skip
MAP_MUTANTS = [(name, label) for name in MAPS for label in ("one up", *MAPS[name])]


def test_every_map_has_wrong_meanings() -> None:
    assert set(MAPS) == {name for name, row in OPS.items() if row.meaning is not None}


@pytest.mark.parametrize(("name", "label"), MAP_MUTANTS)
def test_wrong_maps_are_noticed(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = original(name)
    wrong = MAPS[name].get(label, lambda *args: nudged(right(*args)))
    monkeypatch.setitem(OPS, name, replace(OPS[name], meaning=wrong))
    assert noticed(name)


# -- wrong operations of the registry ----------------------------------------------------------------------------------


def after(name: str, change: Callable[[Any], Any]) -> Function:
    """The operation, and then a change of its result."""
    right = OPERATIONS[name]
    return lambda context, value, args: change(np.asarray(right(context, value, args)))


def before(name: str, change: Callable[[Array], Array]) -> Function:
    """The operation on a changed first argument."""
    right = OPERATIONS[name]
    return lambda context, value, args: right(context, value, [change(args[0]), *args[1:]])


def rolled(axis: int) -> Callable[[Array], Array]:
    return lambda x: np.roll(x, 1, axis=axis) if x.ndim == 2 else x


def clipped(name: str) -> Function:
    """An index outside is moved inside instead of giving NaN."""
    right = OPERATIONS[name]

    def wrong(context: Any, value: Any, args: list[Array]) -> Any:
        at = 0 if name == "gather" else 1
        length = len(context.inputs[value.attr]) if name == "gather" else args[0].shape[1]
        changed = list(args)
        changed[at] = np.clip(args[at], 0, max(length - 1, 0))
        return right(context, value, changed)

    return wrong


def by_tile(reduce: Callable[[Array], Array]) -> Function:
    return operations._tile_reduction(reduce)


def padded(name: str) -> Function:
    """Lanes outside a ragged tile enter as 0."""
    right = OPERATIONS[name]

    def wrong(context: Any, value: Any, args: list[Array]) -> Any:
        x = context.binding.kernel.values[value.args[0]]
        axis, width = operations._tile_axis(context, value, x)
        short = -args[0].shape[axis] % width
        pads = [(0, short if i == axis else 0) for i in range(2)]
        return right(context, value, [np.pad(args[0], pads)])

    return wrong


def wider(name: str) -> Function:
    """Tiles of another width."""
    right = OPERATIONS[name]

    def wrong(context: Any, value: Any, args: list[Array]) -> Any:
        other = replace(context, tile=(context.tile[0] + 1, context.tile[1] + 2))
        return right(other, value, args)

    return wrong


def welford(part: str, change: Callable[[Array, Array], Array]) -> Function:
    """Another value for one of the three results; `change` gets the argument and the right result."""
    right = OPERATIONS["tile_welford"]

    def wrong(context: Any, value: Any, args: list[Array]) -> Any:
        y = right(context, value, args)
        return change(args[0], y) if value.attr[1] == part else y

    return wrong


def other_axis(name: str) -> Function:
    """A reduction along the first axis, whichever was meant."""
    reduce = {"reduce_sum": operations.sum_last, "reduce_max": operations.max_last,
              "reduce_min": lambda x: -operations.max_last(-x)}[name]  # fmt: skip
    return lambda context, value, args: reduce(np.moveaxis(args[0], 0, -1))


def naive_logsumexp(x: Array) -> Array:
    return np.log(np.exp(x).sum(-1))


def shifted_by_infinity(x: Array) -> Array:
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def summed_twice_rounded(x: Array) -> Array:
    return x.astype(np.float16).sum(-1).astype(x.dtype)


RIGHT: dict[str, Function] = dict(OPERATIONS)
REGISTRY: dict[str, dict[str, Function]] = {
    "const": {"f16": after("const", lambda y: y.astype(np.float16).astype(y.dtype) if y.dtype.kind == "f" else y)},
    "axis": {"one less": after("axis", lambda y: y - 1)},
    "acc": {"rounded": after("acc", lambda y: numerics.round_to(y, "bf16")), "rows moved": after("acc", rolled(0))},
    "load": {"rows moved": after("load", rolled(0)), "columns moved": after("load", rolled(1))},
    "row": {"from the strip": lambda context, value, args: np.arange(context.last - context.first)[:, None]},
    "col": {"of a pair": after("col", lambda y: y // 2 * 2)},
    "gather": {"clipped": clipped("gather"), "the next": before("gather", lambda i: i + 1)},
    "pick": {"clipped": clipped("pick"), "the next": lambda c, v, a: RIGHT["pick"](c, v, [a[0], a[1] + 1, *a[2:]]),
             "nothing is ignored": lambda c, v, a: RIGHT["pick"](c, v, a[:2])},
    "onehot": {"the others": after("onehot", lambda y: 1 - y), "the next": before("onehot", lambda i: i + 1)},
    "to_f32": {"f16": after("to_f32", lambda y: y.astype(np.float16).astype(y.dtype)),
               "negated": after("to_f32", np.negative)},
    "round": {"nothing": lambda context, value, args: args[0],
              "towards 0": lambda c, v, a: (a[0].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)},
    "even": {"odd": OPERATIONS["odd"], "the first half": lambda c, v, a: a[0][:, : a[0].shape[1] // 2]},
    "odd": {"even": OPERATIONS["even"], "the second half": lambda c, v, a: a[0][:, a[0].shape[1] // 2 :]},
    "unpairs": {"swapped": lambda c, v, a: np.roll(RIGHT["unpairs"](c, v, a), 1, 1),
                "side by side": after("unpairs", lambda y: np.concatenate([y[:, 0::2], y[:, 1::2]], 1))},
    "tile_sum": {"f16": by_tile(summed_twice_rounded), "without the last": by_tile(lambda x: x[..., :-1].sum(-1)),
                 "wider tiles": wider("tile_sum")},
    "tile_max": {"NaN loses": by_tile(lambda x: np.fmax.reduce(x, -1)), "0 outside": padded("tile_max"),
                 "absmax": OPERATIONS["tile_absmax"], "wider tiles": wider("tile_max")},
    "tile_absmax": {"max": OPERATIONS["tile_max"], "NaN loses": by_tile(lambda x: np.fmax.reduce(np.abs(x), -1)),
                    "wider tiles": wider("tile_absmax")},
    "tile_logsumexp": {"overflows": by_tile(naive_logsumexp), "−∞ − −∞": by_tile(shifted_by_infinity),
                       "0 outside": padded("tile_logsumexp"), "max": OPERATIONS["tile_max"],
                       "wider tiles": wider("tile_logsumexp")},
    "tile_welford": {"count of whole tiles": welford("count", lambda x, y: np.full_like(y, y.max(initial=0))),
                     "a sum for the mean": welford("mean", lambda x, y: y * 2),
                     "a variance": welford("m2", lambda x, y: y / max(1, x.shape[1])),
                     "parts swapped": lambda c, v, a: RIGHT["tile_welford"](
                         c, replace(v, attr=(v.attr[0], {"count": "m2", "m2": "count"}.get(v.attr[1], "mean"))), a)},
    "segment_sum": {"strided": lambda c, v, a: operations.sum_last(
        a[0].reshape(len(a[0]), -1, c.length(v.type.dims[1])).swapaxes(1, 2))},
    "reduce_sum": {"first axis": other_axis("reduce_sum"),
                   "f16": lambda c, v, a: summed_twice_rounded(np.moveaxis(a[0], operations._position(c, v), -1))},
    "reduce_max": {"first axis": other_axis("reduce_max"), "min": OPERATIONS["reduce_min"],
                   "0 of nothing": after("reduce_max", lambda y: np.where(y == -np.inf, 0, y))},
    "reduce_min": {"first axis": other_axis("reduce_min"), "max": OPERATIONS["reduce_max"],
                   "0 of nothing": after("reduce_min", lambda y: np.where(y == np.inf, 0, y))},
}  # fmt: skip
REGISTRY_MUTANTS = [(name, label) for name in REGISTRY for label in ("one up", *REGISTRY[name])]


def test_every_operation_has_wrong_meanings() -> None:
    assert set(REGISTRY) == set(OPERATIONS) == {name for name, row in OPS.items() if row.meaning is None}


@pytest.mark.parametrize(("name", "label"), REGISTRY_MUTANTS)
def test_wrong_operations_are_noticed(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = REGISTRY[name].get(label, after(name, nudged))
    if name == "tile_logsumexp" and label == "one up":  # which is within its bound
        wrong = after(name, lambda y: nudged(nudged(nudged(y))))
    monkeypatch.setitem(OPERATIONS, name, wrong)
    assert noticed(name)


# -- wrong loads and stores --------------------------------------------------------------------------------------------


def truncated(x: Array, dtype: str) -> Array:
    return numerics.to_storage((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if x.dtype == np.float32 and
                               dtype == "bf16" else x, dtype)  # fmt: skip


def overflowing(x: Array, dtype: str) -> Array:
    """f8 without its clamp."""
    return x.astype(numerics.STORAGE[dtype]) if dtype in numerics.F8_MAX else numerics.to_storage(x, dtype)


def rounded_twice(x: Array, dtype: str) -> Array:
    return numerics.to_storage(numerics.round_to(x, "f16") if x.dtype.kind == "f" else x, dtype)


@pytest.mark.parametrize("wrong", [truncated, overflowing, rounded_twice])
def test_wrong_stores_are_noticed(wrong: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "to_storage", wrong)
    assert noticed(None)


def test_a_lost_old_value_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = run._store
    monkeypatch.setattr(run, "_store", lambda *args: store(*args[:-1], False))
    assert noticed(None)


def test_a_strip_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = run._ranges
    monkeypatch.setattr(run, "_ranges", lambda *args: [*ranges(*args), ranges(*args)[-1]])
    assert noticed(None)  # what is updated in place is updated twice


def test_what_is_right_is_not_noticed() -> None:
    assert not noticed(None)
    for name in ("add", "max", "exp", "fma", "idiv"):
        assert not noticed(name)
