"""The start of an RMSNorm: `input_rms` of a tensor, `residual_rms_linear` in the epilogue of a linear layer.

Both leave h = d·w and rstd = 1/√(mean(d²) + eps), not the normalised tensor: since rstd is one number for each row,
rmsnorm(d)·w @ W.T = rstd·(h @ W.T), and the linear layer that follows scales by it (CODA, arXiv 2605.19269). Both are
differentiable in d, h and rstd alike, so any use of the three has the right gradient.
"""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.inductor import fake


def input_rms(x: Tensor, norm_weight: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """The start of a norm that no linear layer precedes.

    Args:
        x: [..., N], bf16 or f16 (any type under autocast).
        norm_weight: [N], of any floating type; read in f32.

    Returns:
        h = x·norm_weight [..., N] and rstd f32[...].

    Raises:
        ArgumentError: wrong shapes or types.
    """
    norm_shape(x, norm_weight, "input_rms")
    once.refuse_forward_mode("input_rms", x, norm_weight)
    (x,) = calls.operands(x)
    h, rstd = input_op(calls.rows(x), norm_weight.float(), eps)
    return h.view(x.shape), rstd.view(x.shape[:-1])


def residual_rms_linear(
    x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """d = residual + x @ weight.T, with the start of d's norm, in one pass.

    Args:
        x: [..., K], bf16 or f16 (any type under autocast).
        weight: [N, K] and residual: [..., N], of x's type.
        norm_weight: [N], of any floating type; read in f32.

    Returns:
        d and h = d·norm_weight, both [..., N], and rstd f32[...].

    Raises:
        ArgumentError: wrong shapes or types.
    """
    calls.linear_shapes(x, weight, "residual_rms_linear")
    once.refuse_forward_mode("residual_rms_linear", x, weight, residual, norm_weight)
    x, weight, residual = calls.operands(x, weight, residual)
    shape = (*x.shape[:-1], weight.shape[0])
    if residual.shape != shape:
        raise ArgumentError(f"residual_rms_linear: residual must be {list(shape)}, got {list(residual.shape)}")
    norm_shape(residual, norm_weight, "residual_rms_linear")
    d, h, rstd = forward_op(calls.rows(x), weight, calls.rows(residual), norm_weight.float(), eps)
    return d.view(shape), h.view(shape), rstd.view(shape[:-1])


def norm_shape(x: Tensor, norm_weight: Tensor, name: str) -> None:
    """Raises ArgumentError unless there is a weight for each column of x."""
    if norm_weight.shape != x.shape[-1:]:
        raise ArgumentError(f"{name}: norm_weight must be [{x.shape[-1]}], got {list(norm_weight.shape)}")


def combine_squares(sq: Tensor, width: int, eps: float) -> Tensor:
    """f32[M, tiles(N)] partials of Σ d² → rstd f32[M]."""
    rstd: Tensor = calls.run("reduces", "rstd_from_squares", ["rstd"], sq=sq, N=width, eps=eps).rstd
    return rstd


@torch.library.custom_op("coda_lang::input_rms", mutates_args=())
def input_op(x: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h, rstd."""
    out = calls.run("input_rms", "input_rms", ["sq", "h"], c=x, w=norm_weight)
    return out.h, combine_squares(out.sq, x.shape[1], eps)


@fake(input_op)
def _(x: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("coda_lang::residual_rms_linear", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """d, h, rstd."""
    asked = ["d", "sq", "h"]
    out = calls.run("residual_rms", "residual_rms", asked, a=x, b=weight, c=residual, w=norm_weight)
    return out.d, out.h, combine_squares(out.sq, weight.shape[0], eps)


@fake(forward_op)
def _(x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    d = x.new_empty(x.shape[0], weight.shape[0])
    return d, torch.empty_like(d), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("coda_lang::rms_grad", mutates_args=())
def grad_op(
    dh: Tensor, d: Tensor, norm_weight: Tensor, rstd: Tensor, drstd: Tensor, other: Tensor | None, *, want_norm: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of d (which has `other` from elsewhere) and of the norm weight, from those of h and rstd."""
    asked = ["o_new", "dw"] if want_norm else ["o_new"]
    arguments = {"dh": dh, "c": d, "w": norm_weight, "rstd": rstd, "drstd": drstd, "o": other}
    out = calls.run("rms_bwd_map", "rms_bwd_map", asked, **arguments)
    return out.o_new, calls.column_sums(out.dw) if want_norm else calls.nothing(norm_weight)


@fake(grad_op)
def _(
    dh: Tensor, d: Tensor, norm_weight: Tensor, rstd: Tensor, drstd: Tensor, other: Tensor | None, *, want_norm: bool
) -> tuple[Tensor, Tensor]:
    return dh.new_empty(dh.shape), norm_weight.new_empty(dh.shape[1] if want_norm else 0)


@torch.library.custom_op("coda_lang::rms_linear_grad", mutates_args=())
def linear_grad_op(
    dz: Tensor, weight: Tensor, d: Tensor, rstd: Tensor, norm_weight: Tensor, zdz: Tensor, other: Tensor | None,
    *, want_normed: bool, want_norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of d through z = rmsnorm(d)·norm_weight @ weight.T in the epilogue of dz @ weight.

    `zdz` f32[M] is Σ z·dz of each row, divided by d's width. Also the normalised input, which the weight's gradient
    reads, and the norm weight's gradient, each if asked for.
    """
    asked = ["o_new", *(["c_out"] if want_normed else []), *(["dw"] if want_norm else [])]
    arguments = {"a": dz, "b": weight, "c": d, "rstd": rstd, "w": norm_weight, "zdz": zdz, "o": other}
    out = calls.run("residual_rms_bwd", "residual_rms_bwd", asked, **arguments)
    return (
        out.o_new,
        out.c_out if want_normed else calls.nothing(d),
        calls.column_sums(out.dw) if want_norm else calls.nothing(norm_weight),
    )


@fake(linear_grad_op)
def _(
    dz: Tensor, weight: Tensor, d: Tensor, rstd: Tensor, norm_weight: Tensor, zdz: Tensor, other: Tensor | None,
    *, want_normed: bool, want_norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        d.new_empty(d.shape),
        d.new_empty(d.shape) if want_normed else calls.nothing(d),
        norm_weight.new_empty(d.shape[1] if want_norm else 0),
    )


def _gradients(
    d: Tensor, norm_weight: Tensor, rstd: Tensor, other: Gradient, dh: Gradient, drstd: Gradient, want_norm: bool
) -> tuple[Gradient, Gradient]:
    """Of d and of the norm weight, whichever of the three output gradients there are."""
    if dh is None and drstd is None:
        return other, None
    dh = torch.zeros_like(d) if dh is None else dh
    drstd = torch.zeros_like(rstd) if drstd is None else drstd
    total, dnorm = grad_op(dh, d, norm_weight, rstd, drstd, other, want_norm=want_norm)
    return total, dnorm if want_norm else None


def _setup_input(ctx: Any, inputs: Any, output: Any) -> None:
    x, norm_weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, norm_weight, output[1])


def _backward_input(ctx: Any, saved: Any, dh: Gradient, drstd: Gradient) -> tuple[Gradient, Gradient, None]:
    x, norm_weight, rstd = saved
    dx, dnorm = _gradients(x, norm_weight, rstd, None, dh, drstd, ctx.needs_input_grad[1])
    return dx, dnorm, None


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, norm_weight, _ = inputs
    d, _, rstd = output
    need_x, need_weight = ctx.needs_input_grad[:2]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, norm_weight, d, rstd)


def _backward(
    ctx: Any, saved: Any, dd: Gradient, dh: Gradient, drstd: Gradient
) -> tuple[Gradient, Gradient, Gradient, Gradient, None]:
    x, weight, norm_weight, d, rstd = saved
    need_x, need_weight, need_residual, need_norm, _ = ctx.needs_input_grad
    total, dnorm = _gradients(d, norm_weight, rstd, dd, dh, drstd, need_norm)
    if total is None:
        return None, None, None, None, None
    return (
        calls.input_gradient(total, weight) if need_x else None,
        calls.weight_gradient(total, x) if need_weight else None,
        total if need_residual else None,
        dnorm,
        None,
    )


once.register(input_op, "input_rms", _backward_input, _setup_input)
once.register(forward_op, "residual_rms_linear", _backward, _setup)
