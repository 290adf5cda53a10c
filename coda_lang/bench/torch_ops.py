"""Each map of the operation table as PyTorch writes it: beside `coda_lang.ir.ops` and `backend_cutlass.cuda_ops`.

`{0}` and so on are the arguments, tensors or numbers. The functions below are what PyTorch has no one operation for;
sources made from the table see them under their names, and `torch.compile` traces through them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TORCH = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "idiv": "integer_divide({0}, {1})",
    "mod": "modulo({0}, {1})",
    "fma": "{0} * {1} + {2}",
    "min": "minimum({0}, {1})",
    "max": "maximum({0}, {1})",
    "abs": "abs({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "negation({0})",
    "select": "select({0}, {1}, {2})",
    "exp": "torch.exp({0})",
    "exp2": "torch.exp2({0})",
    "log": "torch.log({0})",
    "log2": "torch.log2({0})",
    "log1p": "torch.log1p({0})",
    "tanh": "torch.tanh({0})",
    "erf": "torch.erf({0})",
    "erfc": "torch.erfc({0})",
    "ndtr": "torch.erfc(-0.7071067811865476 * {0}) * 0.5",  # torch.special.ndtr cancels in its tail
    "sqrt": "torch.sqrt({0})",
    "rsqrt": "torch.rsqrt({0})",
    "sigmoid": "torch.sigmoid({0})",
    "to_f32": "to_f32({0})",
}

LARGEST_F8 = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}

Value = Tensor | float | int | bool


def tensor(x: Value, like: Tensor) -> Tensor:
    """A number as a tensor on the device of `like`."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device=like.device)


def maximum(x: Any, y: Any) -> Any:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.maximum(x, y)
    if isinstance(x, Tensor):
        return torch.clamp(x, min=y)
    return torch.clamp(y, min=x) if isinstance(y, Tensor) else max(x, y)


def minimum(x: Any, y: Any) -> Any:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.minimum(x, y)
    if isinstance(x, Tensor):
        return torch.clamp(x, max=y)
    return torch.clamp(y, max=x) if isinstance(y, Tensor) else min(x, y)


def negation(x: Any) -> Any:
    return ~x if isinstance(x, Tensor) else not x


def select(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, Tensor):
        return torch.where(condition, x, y)
    return x if condition else y


def integer_divide(x: Any, y: Any) -> Any:
    """⌊x / y⌋; 0 where y is 0."""
    if not isinstance(y, Tensor):
        return x // y if y else x * 0
    return torch.where(y == 0, 0, torch.div(x, torch.where(y == 0, 1, y), rounding_mode="floor"))


def modulo(x: Any, y: Any) -> Any:
    """x − y·⌊x / y⌋; 0 where y is 0."""
    if not isinstance(y, Tensor):
        return x % y if y else x * 0
    return torch.where(y == 0, 0, torch.remainder(x, torch.where(y == 0, 1, y)))


def to_f32(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) else float(x)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As a store rounds: f8 clamps to its largest finite value first."""
    if dtype in LARGEST_F8:
        x = torch.clamp(x, -LARGEST_F8[dtype], LARGEST_F8[dtype])
    return x.to(dtype)


def spread(x: Value, copies: int, inner: bool) -> Value:
    """Columns of a head at the width of all heads: repeated in each, or each of them filling its head."""
    if not isinstance(x, Tensor) or x.shape[1] == 1:
        return x
    return x.repeat(1, copies) if inner else x.repeat_interleave(copies, 1)


def unpairs(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack((x, y), -1).flatten(1)


def pick(x: Tensor, index: Tensor, ignore: Value | None = None) -> Tensor:
    """x[m, index[m]] as [rows, 1]; NaN for an index outside x, 0 where it is `ignore`."""
    inside = (index >= 0) & (index < x.shape[1])
    found = torch.where(inside, x.gather(1, torch.where(inside, index, 0)), torch.nan)
    return found if ignore is None else torch.where(index == ignore, 0.0, found)


def welford(x: Tensor, axis: int, part: str) -> Tensor:
    """The whole's count, mean or Σ(x − mean)² along an axis."""
    if part == "count":
        return torch.full_like(x.select(axis, 0), x.shape[axis])
    mean = x.mean(axis)
    return mean if part == "mean" else (x - mean.unsqueeze(axis)).square().sum(axis)
