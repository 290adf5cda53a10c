"""`linear_act`: y = act(x @ weight.T + bias), one kernel forward; one map and two products backward."""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError, did_you_mean
from coda_lang.torch import calls, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.inductor import fake

ACTIVATIONS = ("relu", "relu_sq", "gelu", "gelu_tanh", "silu", "quick_gelu")


def linear_act(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    """act(x @ weight.T + bias).

    Args:
        x: [..., K], bf16 or f16 (any type under autocast).
        weight: [N, K], of x's type.
        bias: [N], of any floating type; added in f32.
        activation: one of `ACTIVATIONS`; `gelu` is the erf form, `relu_sq` is max(z, 0)².

    Returns:
        [..., N] of x's type.

    Raises:
        ArgumentError: wrong shapes or types, or an unknown activation.
    """
    if activation not in ACTIVATIONS:
        help = did_you_mean(activation, ACTIVATIONS) or f"one of {', '.join(ACTIVATIONS)}"
        raise ArgumentError(f"linear_act: no activation `{activation}`: {help}")
    calls.linear_shapes(x, weight, "linear_act")
    once.refuse_forward_mode("linear_act", x, weight, bias)
    x, weight = calls.operands(x, weight)
    keep = calls.any_grad(x, weight, bias)
    y, *_ = forward_op(
        calls.rows(x), weight, None if bias is None else bias.float(), activation=activation, keep=keep
    )  # fmt: skip
    return calls.unrows(y, x)


@torch.library.custom_op("coda_lang::linear_act", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the pre-activation z if it is to be kept for the backward pass, and a link."""
    out = calls.run(
        "linear_act", f"linear_{activation}", ["z", "y"] if keep else ["y"], a=x, b=weight, bias=bias
    )  # fmt: skip
    return out.y, out.z if keep else calls.nothing(x), once.link(x)


@fake(forward_op)
def _(x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    y = x.new_empty(x.shape[0], weight.shape[0])
    return y, torch.empty_like(y) if keep else calls.nothing(x), once.link(x)


@torch.library.custom_op("coda_lang::act_grad", mutates_args=())
def grad_op(dy: Tensor, z: Tensor, *, activation: str, want_bias: bool) -> tuple[Tensor, Tensor]:
    """dz = dy·act′(z), and its column sums if asked for."""
    asked = ["dz", "dbias"] if want_bias else ["dz"]
    out = calls.run("act_bwd_map", f"{activation}_bwd_map", asked, dy=dy, z=z)
    return out.dz, calls.column_sums(out.dbias) if want_bias else calls.nothing(dy, torch.float32)


@fake(grad_op)
def _(dy: Tensor, z: Tensor, *, activation: str, want_bias: bool) -> tuple[Tensor, Tensor]:
    return dy.new_empty(dy.shape), dy.new_empty(dy.shape[1] if want_bias else 0, dtype=torch.float32)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, weight, _ = inputs
    need_x, need_weight, _ = ctx.needs_input_grad[:3]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.activation, ctx.kept = keyword_only_inputs["activation"], keyword_only_inputs["keep"]
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, *output[1:])


def _backward(ctx: Any, saved: Any, dy: Gradient, *_: Gradient) -> tuple[Gradient, Gradient, Gradient]:
    if dy is None:
        return None, None, None
    calls.must_be_kept(ctx, "linear_act")
    x, weight, z, _ = saved
    need_x, need_weight, need_bias = ctx.needs_input_grad
    dz, dbias = grad_op(dy, z, activation=ctx.activation, want_bias=need_bias)
    return (
        calls.input_gradient(dz, weight) if need_x else None,
        calls.weight_gradient(dz, x) if need_weight else None,
        dbias if need_bias else None,
    )


once.register(forward_op, "linear_act", _backward, _setup)
