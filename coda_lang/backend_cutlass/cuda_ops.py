"""The CUDA meaning of the operation table: one expression for each row of class 1.

`{0}`, `{1}`, … are the operands, already float, int64_t or bool. Nothing here may round differently from
`ir.numerics` unless the row's `gpu_ulp` and `gpu_abs` say so; the functions and where their bounds come from are in
``csrc/coda/math.h``.
"""

from __future__ import annotations

from collections.abc import Sequence

from coda_lang.ir.program import Value
from coda_lang.ir.types import DType

CUDA = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "coda::divide({0}, {1})",
    "idiv": "coda::idiv({0}, {1})",
    "mod": "coda::modulo({0}, {1})",
    "fma": "__fmaf_rn({0}, {1}, {2})",
    "min": "coda::minimum({0}, {1})",
    "max": "coda::maximum({0}, {1})",
    "abs": "coda::absolute({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "not": "!{0}",
    "select": "{0} ? {1} : {2}",
    "exp": "expf({0})",
    "exp2": "coda::exp2_approx({0})",
    "log": "coda::log_approx({0})",
    "log2": "coda::log2_approx({0})",
    "log1p": "log1pf({0})",
    "tanh": "tanhf({0})",
    "erf": "erff({0})",
    "erfc": "(2.f * coda::normal_cdf(-1.4142135f * {0}))",
    "ndtr": "coda::normal_cdf({0})",
    "sqrt": "coda::sqrt_approx({0})",
    "rsqrt": "coda::rsqrt_approx({0})",
    "sigmoid": "coda::sigmoid({0})",
    "to_f32": "float({0})",
    "round": "coda::rounded<{T}>({0})",
}

# Element types in memory.
STORAGE = {
    "f32": "float",
    "f16": "coda::f16",
    "bf16": "coda::bf16",
    "f8e4m3": "coda::e4m3",
    "f8e5m2": "coda::e5m2",
    "i32": "int32_t",
    "i64": "int64_t",
    "bool": "bool",
}
# The three types of a body.
WIDE = {"float": "float", "int": "int64_t", "bool": "bool"}


def expression(value: Value, operands: Sequence[str]) -> str:
    """The CUDA expression of a class 1 map on operands that are names or literals."""
    rounded = STORAGE[value.attr.name] if isinstance(value.attr, DType) else ""
    return CUDA[value.op].format(*operands, T=rounded)


def literal(number: float | int | bool, dtype: DType) -> str:
    """A constant of a body's type, exact to the bit."""
    if dtype.kind == "bool":
        return "true" if number else "false"
    if dtype.kind == "int":
        return f"int64_t({int(number)})" if int(number) > -(2**63) else "(int64_t(-9223372036854775807) - 1)"
    x = float(number)
    if x != x:
        return "coda::nan()"
    if x in (float("inf"), float("-inf")):
        return f"__int_as_float({'0x7f800000' if x > 0 else '0xff800000'})"
    text = repr(x) if abs(x) < 1e16 and x == round(x, 6) else x.hex()
    return f"{text}f" if x >= 0 and not text.startswith("-") else f"({text}f)"
