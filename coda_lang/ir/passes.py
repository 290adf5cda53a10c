"""Passes over the IR: dead values, common subexpressions, constant folding, and specialisation to a call.

Each keeps every result to the bit, NaN, infinities and signed zeros included: x + 0 is not x (−0 + 0 is +0), x·0 is
not 0, and nothing is reassociated. Folding computes with the operation's own NumPy meaning.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from coda_lang.ir.numerics import Array, round_to
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Attr, Kernel, Number, Param, Store, Value
from coda_lang.ir.types import BOOL, F32, I64, DType


def tidy(kernel: Kernel) -> Kernel:
    """Fold constants, merge common subexpressions and drop dead values."""
    return drop_dead(merge_common(fold_constants(kernel)))


def specialise(kernel: Kernel, passed: frozenset[str], outputs: frozenset[str]) -> Kernel:
    """The kernel of one kind of call: optional inputs that are not `passed` become their defaults, and outputs that are
    not asked for are neither computed nor stored. The accumulator stays."""
    absent = {p.name: p for p in kernel.params if p.name not in passed and p.default is not None}
    reads = ("load", "gather")
    values = tuple(_default(v, absent[v.attr]) if v.op in reads and v.attr in absent else v for v in kernel.values)
    kept = tuple(st for st in kernel.stores if st.target in outputs or st.accumulate)
    params = tuple(p for p in kernel.params if p.name not in absent)
    wanted = tuple(o for o in kernel.outputs if o.name in outputs)
    return tidy(replace(kernel, params=params, outputs=wanted, values=values, stores=kept))


def _default(value: Value, param: Param) -> Value:
    """The number that an absent input stands for. It keeps the extents: what reads it may depend on them."""
    assert param.default is not None
    number: Number = param.default
    if value.type.dtype == F32:
        number = float(np.float32(number))
    return replace(value, op="const", args=(), attr=number)


def drop_dead(kernel: Kernel) -> Kernel:
    """Keep what a store needs, in order."""
    live = set()
    pending = [st.value for st in kernel.stores]
    while pending:
        index = pending.pop()
        if index not in live:
            live.add(index)
            pending += kernel.values[index].args
    return _rebuild(kernel, [i for i in range(len(kernel.values)) if i in live])


def _rebuild(kernel: Kernel, keep: list[int]) -> Kernel:
    new = {old: i for i, old in enumerate(keep)}
    values = (kernel.values[i] for i in keep)
    renamed = tuple(replace(v, args=tuple(new[a] for a in v.args)) for v in values)
    return replace(kernel, values=renamed, stores=tuple(replace(st, value=new[st.value]) for st in kernel.stores))


def merge_common(kernel: Kernel) -> Kernel:
    """A value that is computed twice is computed once."""
    seen: dict[tuple[object, ...], int] = {}
    new: list[int] = []
    values: list[Value] = []
    for value in kernel.values:
        args = tuple(new[a] for a in value.args)
        key = (value.op, args, _exact(value.attr), value.type)
        if key not in seen:
            seen[key] = len(values)
            values.append(replace(value, args=args) if args != value.args else value)
        new.append(seen[key])
    stores = tuple(Store(st.target, new[st.value], st.accumulate, span=st.span) for st in kernel.stores)
    return replace(kernel, values=tuple(values), stores=stores)


def _exact(attr: Attr) -> object:
    """A key that tells −0 from +0, 1 from 1.0 and True, and takes any NaN for the same."""
    if isinstance(attr, float):
        return "f", "nan" if attr != attr else struct.pack("<d", attr)
    return type(attr).__name__, attr


def fold_constants(kernel: Kernel) -> Kernel:
    """Maps of constants become constants; x·1, x/1, x − (+0) and a decided `select` what they equal to the bit."""
    values: list[Value] = []
    for value in kernel.values:
        args = [values[a] for a in value.args]
        if args and all(a.op == "const" for a in args):
            value = _evaluated(value, args)
        values.append(value)
    alias = list(range(len(values)))
    for i, value in enumerate(values):
        args_now = tuple(alias[a] for a in value.args)
        if args_now != value.args:
            values[i] = value = replace(value, args=args_now)
        same = _identity(value, values)
        if same is not None and values[same].type == value.type:
            alias[i] = same
    stores = tuple(replace(st, value=alias[st.value]) for st in kernel.stores)
    return replace(kernel, values=tuple(values), stores=stores)


def _identity(value: Value, values: list[Value]) -> int | None:
    """The argument that a value equals to the bit whatever it holds (any NaN equals any NaN)."""
    if value.op == "select" and values[value.args[0]].op == "const":
        return value.args[1 if values[value.args[0]].attr else 2]
    if value.op not in ("add", "sub", "mul", "div") or len(value.args) != 2:
        return None
    left, right = value.args

    def is_number(index: int, number: float) -> bool:
        attr = values[index].attr
        if values[index].op != "const" or isinstance(attr, bool) or not isinstance(attr, (int, float)):
            return False
        return _exact(float(attr)) == _exact(number)

    integer = value.type.dtype == I64
    neutral = {"add": 0.0 if integer else -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}[value.op]
    if is_number(right, neutral):
        return left
    return right if value.op in ("add", "mul") and is_number(left, neutral) else None


def _evaluated(value: Value, args: list[Value]) -> Value:
    """A map of constants, computed as the interpreter would; integers that would overflow stay as they are."""
    row = OPS[value.op]
    numbers: list[Array] = [np.asarray(a.attr, dtype=_numpy(a.type.dtype)) for a in args]
    with np.errstate(all="ignore"):
        if value.op == "round":
            assert isinstance(value.attr, DType)
            result = round_to(numbers[0].reshape(1), value.attr.name)[0]
        elif value.op == "to_f32":
            result = numbers[0].astype(np.float32)
        elif row.meaning is None:
            return value
        else:
            result = row.meaning(*(n.reshape(1) for n in numbers))[0]
    dtype = value.type.dtype
    number: Number = bool(result) if dtype == BOOL else int(result) if dtype == I64 else float(np.float32(result))
    return replace(value, op="const", args=(), attr=number)


def _numpy(dtype: DType) -> type:
    return {F32: np.float32, I64: np.int64, BOOL: np.bool_}[dtype]
