"""`linear_swiglu`: z = x @ weight.T, y = silu(gate)·up, with gate and up interleaved in the weight's rows.

`swiglu_mlp` is that and the linear layer after it in one operation, whose gradient is made in the epilogue of that
layer's product. It keeps z, and not y.
"""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls, kept, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.inductor import fake


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
    once.refuse_forward_mode("linear_swiglu", x, weight, rstd, bias)
    x, weight = calls.operands(x, weight)
    y, *_ = forward_op(
        calls.rows(x), weight, calls.row_scale(rstd, x, "linear_swiglu"), None if bias is None else bias.float(),
        keep=calls.any_grad(x, weight, rstd, bias),
    )  # fmt: skip
    return calls.unrows(y, x)


def swiglu_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """linear_swiglu(x, gate_up) @ down.T.

    Args:
        x: [..., K], bf16 or f16 (any type under autocast).
        gate_up: [2·I, K], gate row 2j and up row 2j+1, and down: [N, I], of x's type.

    Returns:
        [..., N] of x's type.

    Raises:
        ArgumentError: wrong shapes or types.
    """
    calls.linear_shapes(x, gate_up, "swiglu_mlp")
    if down.dim() != 2 or 2 * down.shape[1] != gate_up.shape[0]:
        shapes = f"{list(gate_up.shape)} and {list(down.shape)}"
        raise ArgumentError(f"swiglu_mlp: gate_up [2·I, K] needs a down [N, I], got {shapes}")
    once.refuse_forward_mode("swiglu_mlp", x, gate_up, down)
    x, gate_up, down = calls.operands(x, gate_up, down)
    y: Tensor = mlp_op(calls.rows(x), gate_up, down, keep=calls.any_grad(x, gate_up, down))[0]
    return calls.unrows(y, x)


def recomputed(z: Tensor) -> Tensor:
    """y from the saved z, where no kernel of the backward pass makes it."""
    gate, up = z[:, 0::2].float(), z[:, 1::2].float()
    return (gate * torch.sigmoid(gate) * up).to(z.dtype)


@torch.library.custom_op("coda_lang::linear_swiglu", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, bias: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, z if it is to be kept for the backward pass, and a link."""
    name = "swiglu" if rstd is None else "rmsnorm_swiglu"
    out = calls.run(name, name, ["z", "y"] if keep else ["y"], a=x, b=weight, rstd=rstd, bias=bias)
    return out.y, out.z if keep else calls.nothing(x), once.link(x)


@fake(forward_op)
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, bias: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    y = x.new_empty(x.shape[0], weight.shape[0] // 2)
    return y, x.new_empty(x.shape[0], weight.shape[0]) if keep else calls.nothing(x), once.link(x)


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


@fake(grad_op)
def _(dy: Tensor, z: Tensor, rstd: Tensor | None, *, want_zdz: bool, want_bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (
        z.new_empty(z.shape),
        dy.new_empty(z.shape[0] if want_zdz else 0, dtype=torch.float32),
        dy.new_empty(z.shape[1] if want_bias else 0, dtype=torch.float32),
    )


@torch.library.custom_op("coda_lang::linear_swiglu_grad", mutates_args=())
def linear_grad_op(
    dout: Tensor, weight: Tensor, z: Tensor, *, width: int | None, want_y: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dz in the epilogue of dy = dout @ weight, the gradient through the linear layer that follows.

    With a `width`, also Σ z·dz / width of each row; and y, recomputed for the following layer's weight gradient, if
    asked for.
    """
    return _linear_grad(dout, weight, z, width, want_y)


@fake(linear_grad_op)
def _(dout: Tensor, weight: Tensor, z: Tensor, *, width: int | None, want_y: bool) -> tuple[Tensor, Tensor, Tensor]:
    return z.new_empty(z.shape), *_beside_dz(weight, z, width, want_y)


@torch.library.custom_op("coda_lang::linear_swiglu_grad_", mutates_args=("z",))
def overwriting_grad_op(
    dout: Tensor, weight: Tensor, z: Tensor, *, width: int | None, want_y: bool
) -> tuple[Tensor, Tensor]:
    """`linear_grad_op` that leaves dz in z, and returns the other two."""
    return _linear_grad(dout, weight, z, width, want_y, out={"dz": z})[1:]


@fake(overwriting_grad_op)
def _(dout: Tensor, weight: Tensor, z: Tensor, *, width: int | None, want_y: bool) -> tuple[Tensor, Tensor]:
    return _beside_dz(weight, z, width, want_y)


def _linear_grad(
    dout: Tensor, weight: Tensor, z: Tensor, width: int | None, want_y: bool, **given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    asked = ["dz", *(["zdz"] if width is not None else []), *(["y"] if want_y else [])]
    out = calls.run("swiglu_bwd", "swiglu_bwd", asked, a=dout, b=weight, z=z, **given)
    return (
        out.dz,
        calls.row_sums(out.zdz, width) if width is not None else calls.nothing(z, torch.float32),
        out.y if want_y else calls.nothing(z),
    )


def _beside_dz(weight: Tensor, z: Tensor, width: int | None, want_y: bool) -> tuple[Tensor, Tensor]:
    return (
        z.new_empty(z.shape[0] if width is not None else 0, dtype=torch.float32),
        z.new_empty(z.shape[0], weight.shape[1]) if want_y else calls.nothing(z),
    )


def through_linear(
    dout: Tensor, weight: Tensor, z: Tensor, *, width: int | None, want_y: bool, alone: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`linear_grad_op`, in a backward pass. dz takes the place of a z that is large and that nobody reads again.

    `alone` says that z belongs to the graph (`kept.seen_by_nobody`).
    """
    if not (alone and kept.used_up(z, dout, weight)):
        found: tuple[Tensor, Tensor, Tensor] = linear_grad_op(dout, weight, z, width=width, want_y=want_y)
        return found
    zdz, y = overwriting_grad_op(dout, weight, z, width=width, want_y=want_y)
    return z, zdz, y


@torch.library.custom_op("coda_lang::swiglu_mlp", mutates_args=())
def mlp_op(x: Tensor, gate_up: Tensor, down: Tensor, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result, z if it is to be kept for the backward pass, and a link."""
    out = calls.run("swiglu", "swiglu", ["z", "y"] if keep else ["y"], a=x, b=gate_up)
    return out.y @ down.T, out.z if keep else calls.nothing(x), once.link(x)


@fake(mlp_op)
def _(x: Tensor, gate_up: Tensor, down: Tensor, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    count = x.shape[0]
    z = x.new_empty(count, gate_up.shape[0]) if keep else calls.nothing(x)
    return x.new_empty(count, down.shape[0]), z, once.link(x)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, weight, rstd, _ = inputs
    need_x, need_weight = ctx.needs_input_grad[:2]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.kept = keyword_only_inputs["keep"]
    ctx.save_for_backward(x if need_weight else None, weight if need_x else None, rstd, *output[1:])


def _backward(ctx: Any, saved: Any, dy: Gradient, *_: Gradient) -> tuple[Gradient, Gradient, Gradient, Gradient]:
    if dy is None:
        return None, None, None, None
    calls.must_be_kept(ctx, "linear_swiglu")
    x, weight, rstd, z, _ = saved
    need_x, need_weight, need_rstd, need_bias = ctx.needs_input_grad
    dz, zdz, dbias = grad_op(dy, z, rstd, want_zdz=need_rstd, want_bias=need_bias)
    return (
        calls.input_gradient(dz, weight) if need_x else None,
        calls.weight_gradient(dz, x) if need_weight else None,
        zdz / rstd if need_rstd else None,  # z = rstd·acc, so drstd = Σ acc·dz = Σ z·dz / rstd
        dbias if need_bias else None,
    )


def _setup_mlp(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, gate_up, down = inputs
    need_x, need_gate_up, _ = ctx.needs_input_grad[:3]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.kept, ctx.alone = keyword_only_inputs["keep"], kept.seen_by_nobody()
    ctx.save_for_backward(x if need_gate_up else None, gate_up if need_x else None, down, *output[1:])


def _backward_mlp(ctx: Any, saved: Any, dout: Gradient, *_: Gradient) -> tuple[Gradient, Gradient, Gradient]:
    if dout is None:
        return None, None, None
    calls.must_be_kept(ctx, "swiglu_mlp")
    x, gate_up, down, z, _ = saved
    need_x, need_gate_up, need_down = ctx.needs_input_grad
    dz = y = ddown = None
    if need_x or need_gate_up:
        found = through_linear(dout, down, z, width=None, want_y=need_down, alone=ctx.alone)
        dz, y = found[0], found[2]
    elif need_down:
        y = recomputed(z)
    if need_down and y is not None:
        ddown = calls.weight_gradient(dout, y)
    y = None  # it is large, and used up
    return (
        calls.input_gradient(dz, gate_up) if need_x and dz is not None else None,
        calls.weight_gradient(dz, x) if need_gate_up and dz is not None else None,
        ddown,
    )


once.register(forward_op, "linear_swiglu", _backward, _setup)
once.register(mlp_op, "swiglu_mlp", _backward_mlp, _setup_mlp)
