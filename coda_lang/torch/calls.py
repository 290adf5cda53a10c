"""What every operation does around a program: types and shapes, the call, the two products of a linear gradient.

A product without an epilogue has nothing to fuse, so it is left to `torch.mm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coda_lang.api import Program, Result
from coda_lang.errors import ArgumentError
from coda_lang.torch.programs import module

Gradient = Tensor | None


def run(file: str, name: str, outputs: Sequence[str], **arguments: Any) -> Result:
    """Call a program. An argument that is None is not passed, whether the program has it or not; `out` is a call's."""
    program = module(file)[name]
    assert isinstance(program, Program)
    return runner(program, outputs, {k: v for k, v in arguments.items() if v is not None})


def _call(program: Program, outputs: Sequence[str], arguments: Mapping[str, Any]) -> Result:
    return program(outputs=outputs, **arguments)


runner: Callable[[Program, Sequence[str], Mapping[str, Any]], Result] = _call
"""What `run` calls: a rehearsal puts another in its place."""


def column_sums(partials: Tensor) -> Tensor:
    """f32[tiles(M), N] → f32[N]."""
    total: Tensor = run("reduces", "sum_partials_m", ["total"], partials=partials).total
    return total


def row_sums(partials: Tensor, divisor: int = 1) -> Tensor:
    """f32[M, tiles(N)] → f32[M], divided by `divisor`."""
    total: Tensor = run("reduces", "zdz_from_partials", ["zdz"], zdz=partials, D=divisor).zdz
    return total


def nothing(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Stands for an output that was not asked for: an operation always returns tensors."""
    return like.new_empty(0, dtype=dtype or like.dtype)


def any_grad(*tensors: Tensor | None) -> bool:
    """Whether a backward pass can follow, so that what it reads must be kept."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def transformed(*tensors: Tensor | None) -> bool:
    """Whether a transform such as vmap stands between a tensor and its memory; `requires_grad` then says nothing."""
    f = torch._C._functorch
    return any(f.is_functorch_wrapped_tensor(t) or f.is_legacy_batchedtensor(t) for t in tensors if t is not None)


def must_be_kept(ctx: Any, name: str) -> None:
    """Raises RuntimeError in the backward pass of an operation that kept nothing for it."""
    if not ctx.kept:
        raise RuntimeError(f"coda_lang::{name} ran with keep=False, so it has no gradient")


def operands(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the products' type, autocast's where it is on. Raises ArgumentError unless all are bf16 or all f16."""
    kind = tensors[0].device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = tuple(t.to(dtype) for t in tensors)
    first = tensors[0].dtype
    if first not in (torch.bfloat16, torch.float16) or any(t.dtype != first for t in tensors):
        got = ", ".join(str(t.dtype).removeprefix("torch.") for t in tensors)
        hint = "cast them, or run under torch.autocast"
        raise ArgumentError(f"a fused linear layer takes bfloat16 or float16 tensors of one type, got {got}: {hint}")
    return tensors


def linear_shapes(x: Tensor, weight: Tensor, name: str) -> None:
    """Raises ArgumentError unless x [..., K] meets a weight [N, K]: fake tensors meet no other check."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(f"{name}: x [..., K] needs a weight [N, K], got {list(x.shape)} and {list(weight.shape)}")


def rows(x: Tensor) -> Tensor:
    """[..., K] → [M, K]."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def row_scale(rstd: Tensor | None, x: Tensor, name: str) -> Tensor | None:
    """f32[...] → [M], for x [..., K]. Raises ArgumentError for any other shape."""
    if rstd is None:
        return None
    if rstd.shape != x.shape[:-1]:
        raise ArgumentError(f"{name}: rstd must be {list(x.shape[:-1])}, got {list(rstd.shape)}")
    return rstd.reshape(-1)


def unrows(y: Tensor, like: Tensor) -> Tensor:
    """[M, N] → [..., N], with the leading dimensions of `like` [..., K]."""
    return y.view(*like.shape[:-1], y.shape[-1])


def input_gradient(dz: Tensor, weight: Tensor) -> Tensor:
    """Of z = x @ weight.T with respect to x."""
    return dz @ weight


def weight_gradient(dz: Tensor, x: Tensor) -> Tensor:
    """Of z = x @ weight.T with respect to the weight."""
    return dz.T @ x
