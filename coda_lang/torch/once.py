"""First derivatives only: a second one, or one in forward mode, is refused where it would else be lost unnoticed.

A gradient is made by kernels that autograd does not see into. Under `create_graph` PyTorch would then take the parts
of the formula that it does see for the whole of it. So the gradients that leave here hang on a node of their own, which
raises when it is differentiated. It has an edge to the operation, so that it is met on any way to the inputs: through a
saved tensor, either an output or, where no output is kept, the empty one that `link` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from coda_lang.torch.calls import Gradient


def link(like: Tensor) -> Tensor:
    """An output without elements, to be kept differentiable and saved: its node is the operation's."""
    return like.new_empty(0)


def register(
    op: Any, name: str, backward: Callable[..., tuple[Gradient, ...]], setup_context: Callable[..., None]
) -> None:
    """Make `backward(ctx, saved tensors, *output gradients)` the gradient of an operation.

    Differentiating it again raises RuntimeError.
    """

    def formula(ctx: Any, *gradients: Gradient) -> tuple[Gradient, ...]:
        saved = ctx.saved_tensors  # once: checkpoints unpack a tensor only once
        with torch.no_grad():
            found = backward(ctx, saved, *gradients)
        return _refused(name, found, (*saved, *gradients)) if torch.is_grad_enabled() else found

    op.register_autograd(formula, setup_context=setup_context)


def _refused(name: str, found: tuple[Gradient, ...], reasons: Iterable[Gradient]) -> tuple[Gradient, ...]:
    present = [g for g in found if g is not None]
    depends = [t for t in reasons if t is not None and t.requires_grad]
    refused = iter(_Refusal.apply(name, len(present), *present, *depends))  # type: ignore[no-untyped-call]
    return tuple(None if g is None else next(refused) for g in found)


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.operation = name
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"coda_lang::{ctx.operation} has no second derivative: its gradient is not differentiable")


def graph_is_kept() -> bool:
    """Whether the graph of the backward pass that runs can be used again; also true where PyTorch does not say."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def refuse_forward_mode(name: str, *tensors: Tensor | None) -> None:
    """Raises RuntimeError if one carries a tangent: a custom operation would answer that it has none."""
    if not torch.compiler.is_compiling() and any(t is not None and _tangent(t) is not None for t in tensors):
        raise RuntimeError(f"coda_lang::{name} has no forward-mode derivative: use reverse mode (backward)")


def _tangent(t: Tensor) -> Tensor | None:
    found: Tensor | None = unpack_dual(t).tangent  # type: ignore[no-untyped-call]
    return found
