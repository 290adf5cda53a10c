"""`linear_swiglu`: z = x @ weight.T, y = silu(gate)·up, with gate and up interleaved in the weight's rows."""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls
from coda_lang.torch.calls import Gradient


def linear_swiglu(x: Tensor, weight: Tensor, rstd: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """silu(gate)·up of (gate, up) = pairs(rstd·(x @ weight.T) + bias): columns 2j and 2j+1.

    Args:
        x: [..., K], bf16 or f16 (any type under autocast); with `rstd`, the h of `residual_rms_linear` or `input_rms`.
        weight: [2·N, K], of x's type, gate row 2j and up row 2j+1 (`interleave_gate_up`).
        rstd: f32[...], the scale of an RMSNorm before this layer. Not together with a bias.
        bias: [2·N], interleaved likewise.

    Returns:
        [..., N] of x's type. Shazeer (arXiv 2002.05202).

    Raises:
        ArgumentError: wrong shapes or types, or both rstd and bias.
    """
    calls.linear_shapes(x, weight, "linear_swiglu")
    if rstd is not None and bias is not None:
        raise ArgumentError("linear_swiglu: takes rstd or bias, not both")
    x, weight = calls.operands(x, weight)
    y, _ = forward_op(
        calls.rows(x), weight, None if rstd is None else rstd.reshape(-1), None if bias is None else bias.float(),
        keep=calls.any_grad(x, weight, rstd, bias),
    )  # fmt: skip
    return calls.unrows(y, x)


@torch.library.custom_op("coda_lang::linear_swiglu", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, bias: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """y, and z if it is to be kept for the backward pass."""
    name = "swiglu" if rstd is None else "rmsnorm_swiglu"
    out = calls.run(name, name, ["z", "y"] if keep else ["y"], a=x, b=weight, rstd=rstd, bias=bias)
    return out.y, out.z if keep else calls.nothing(x)


@forward_op.register_fake
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, bias: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor]:
    y = x.new_empty(x.shape[0], weight.shape[0] // 2)
    return y, x.new_empty(x.shape[0], weight.shape[0]) if keep else calls.nothing(x)


@torch.library.custom_op("coda_lang::swiglu_grad", mutates_args=())
def grad_op(
    dy: Tensor, z: Tensor, rstd: Tensor | None, *, want_zdz: bool, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dz from dy (times rstd, if given); Σ z·dz of each row and the column sums of dz, each if asked for."""
    asked = ["dz", *(["zdz"] if want_zdz else []), *(["dbias"] if want_bias else [])]
    out = calls.run("swiglu_bwd_map", "swiglu_bwd_map", asked, dy=dy, z=z, rstd=rstd)
    return (
        out.dz,
        calls.row_sums(out.zdz) if want_zdz else calls.nothing(dy, torch.float32),
        calls.column_sums(out.dbias) if want_bias else calls.nothing(dy, torch.float32),
    )


@grad_op.register_fake
def _(
    dy: Tensor, z: Tensor, rstd: Tensor | None, *, want_zdz: bool, want_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        z.new_empty(z.shape),
        dy.new_empty(z.shape[0] if want_zdz else 0, dtype=torch.float32),
        dy.new_empty(z.shape[1] if want_bias else 0, dtype=torch.float32),
    )


@torch.library.custom_op("coda_lang::linear_swiglu_grad", mutates_args=())
def linear_grad_op(
    dout: Tensor, weight: Tensor, z: Tensor, *, width: int, want_y: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dz in the epilogue of dy = dout @ weight, the gradient through the linear layer that follows; Σ z·dz / width.

    Also y, recomputed for the following layer's weight gradient, if asked for.
    """
    asked = ["dz", "zdz", *(["y"] if want_y else [])]
    out = calls.run("swiglu_bwd", "swiglu_bwd", asked, a=dout, b=weight, z=z)
    return out.dz, calls.row_sums(out.zdz, width), out.y if want_y else calls.nothing(z)


@linear_grad_op.register_fake
def _(dout: Tensor, weight: Tensor, z: Tensor, *, width: int, want_y: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (
        z.new_empty(z.shape),
        z.new_empty(z.shape[0], dtype=torch.float32),
        z.new_empty(z.shape[0], weight.shape[1]) if want_y else calls.nothing(z),
    )


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, weight, rstd, _ = inputs
    need_x, need_weight = ctx.needs_input_grad[:2]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.kept = keyword_only_inputs["keep"]
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, rstd, output[1])


def _backward(ctx: Any, dy: Gradient, _: Gradient) -> tuple[Gradient, Gradient, Gradient, Gradient]:
    if dy is None:
        return None, None, None, None
    if not ctx.kept:
        raise RuntimeError("coda_lang::linear_swiglu ran with keep=False, so it has no gradient")
    x, weight, rstd, z = ctx.saved_tensors
    need_x, need_weight, need_rstd, need_bias = ctx.needs_input_grad
    dz, zdz, dbias = grad_op(dy, z, rstd, want_zdz=need_rstd, want_bias=need_bias)
    return (
        calls.input_gradient(dz, weight) if need_x else None,
        calls.weight_gradient(dz, x) if need_weight else None,
        zdz / rstd if need_rstd else None,  # z = rstd·acc, so drstd = Σ acc·dz = Σ z·dz / rstd
        dbias if need_bias else None,
    )


forward_op.register_autograd(_backward, setup_context=_setup)
