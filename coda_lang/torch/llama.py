"""The parts of a Llama layer between attentions, each one operation: what meets in an epilogue stays in it, both ways.

`rms_linear_rope` is the way into the first attention, `llama_mlp` the way out of the last one, and `llama_span` the
whole way from the attention of one layer to that of the next:

    x1 = x + y @ out.T      x2 = x1 + swiglu(rmsnorm(x1) @ gate_up.T) @ down.T      qkv = rope(rmsnorm(x2) @ qkv.T)

Forward that is four kernels and two small reduces; backward, three products with epilogues (rms_linear_grad twice,
linear_swiglu_grad), a map, and the products that make weight gradients. Between the passes an operation keeps y, x1,
the pre-activation z, x2 and qkv, and makes the rest again. No product is run for a gradient that nothing needs.
"""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls, kept, once, residual_rms, rope, swiglu
from coda_lang.torch.calls import Gradient
from coda_lang.torch.inductor import fake


def rms_linear_rope(
    x: Tensor, norm_weight: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, position: Tensor, rotated: int,
    eps: float = 1e-5, *, head_dim: int,
) -> Tensor:  # fmt: skip
    """rope(rmsnorm(x)·norm_weight @ weight.T): arguments of `input_rms` and `linear_rope`. Raises ArgumentError."""
    calls.linear_shapes(x, weight, "rms_linear_rope")
    residual_rms.norm_shape(x, norm_weight, "rms_linear_rope")
    rope.table_shapes("rms_linear_rope", x, weight, cos, sin, position, rotated, head_dim)
    once.refuse_forward_mode("rms_linear_rope", x, norm_weight, weight, cos, sin)
    x, weight = calls.operands(x, weight)
    y: Tensor = rope_op(
        calls.rows(x), norm_weight.float(), weight, cos.float(), sin.float(), position.reshape(-1),
        rotated=rotated, eps=eps,
    )[0]  # fmt: skip
    return calls.unrows(y, x)


def llama_mlp(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor, eps: float = 1e-5
) -> Tensor:
    """x1 = x + y @ out.T, then x1 + swiglu(rmsnorm(x1)·norm_weight @ gate_up.T) @ down.T.

    Args:
        y: [..., A], the attention's output; out: [N, A]; x: [..., N], the residual stream; norm_weight: [N].
        gate_up: [2·I, N], gate row 2j and up row 2j+1; down: [N, I]. bf16 or f16, or any type under autocast.

    Returns:
        The new residual stream [..., N].

    Raises:
        ArgumentError: wrong shapes or types.
    """
    _mlp_shapes(y, out, x, norm_weight, gate_up, down, "llama_mlp")
    once.refuse_forward_mode("llama_mlp", y, out, x, norm_weight, gate_up, down)
    y, out, x, gate_up, down = calls.operands(y, out, x, gate_up, down)
    keep = calls.any_grad(y, out, x, norm_weight, gate_up, down)
    x2: Tensor = mlp_op(
        calls.rows(y), out, calls.rows(x), norm_weight.float(), gate_up, down, eps=eps, keep=keep
    )[0]  # fmt: skip
    return calls.unrows(x2, x)


def llama_span(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor,
    next_norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, position: Tensor, rotated: int, eps: float = 1e-5,
    *, head_dim: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`llama_mlp` of one layer and `rms_linear_rope` of the next: the residual stream [..., N] and the turned qkv.

    Raises:
        ArgumentError: wrong shapes or types, or, on the CPU, a position outside the table.
    """
    _mlp_shapes(y, out, x, norm_weight, gate_up, down, "llama_span")
    calls.linear_shapes(x, qkv, "llama_span")
    residual_rms.norm_shape(x, next_norm, "llama_span")
    rope.table_shapes("llama_span", x, qkv, cos, sin, position, rotated, head_dim)
    once.refuse_forward_mode("llama_span", y, out, x, norm_weight, gate_up, down, next_norm, qkv, cos, sin)
    y, out, x, gate_up, down, qkv = calls.operands(y, out, x, gate_up, down, qkv)
    keep = calls.any_grad(y, out, x, norm_weight, gate_up, down, next_norm, qkv)
    x2, turned, *_ = span_op(
        calls.rows(y), out, calls.rows(x), norm_weight.float(), gate_up, down, next_norm.float(), qkv,
        cos.float(), sin.float(), position.reshape(-1), rotated=rotated, eps=eps, keep=keep,
    )  # fmt: skip
    return calls.unrows(x2, x), calls.unrows(turned, x)


def _mlp_shapes(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor, name: str
) -> None:
    calls.linear_shapes(y, out, name)
    calls.linear_shapes(x, gate_up, name)
    residual_rms.norm_shape(x, norm_weight, name)
    if down.shape != (out.shape[0], gate_up.shape[0] // 2) or out.shape[0] != x.shape[-1]:
        shapes = f"out {list(out.shape)}, gate_up {list(gate_up.shape)}, down {list(down.shape)}"
        rule = f"out is [N, A], gate_up [2·I, N] and down [N, I] with N = {x.shape[-1]}"
        raise ArgumentError(f"{name}: {rule}, got {shapes}")


# -- the operations --


@torch.library.custom_op("coda_lang::rms_linear_rope", mutates_args=())
def rope_op(
    x: Tensor, norm_weight: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, and the norm's rstd."""
    rope.positions_inside("rms_linear_rope", position, cos)
    start = calls.run("input_rms", "input_rms", ["sq", "h"], c=x, w=norm_weight)
    rstd = residual_rms.combine_squares(start.sq, x.shape[1], eps)
    return _turned(start.h, weight, rstd, cos, sin, position, rotated), rstd


@fake(rope_op)
def _(
    x: Tensor, norm_weight: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("coda_lang::llama_mlp", mutates_args=())
def mlp_op(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor, *, eps: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x2; x1, its rstd and z if they are to be kept for the backward pass; and a link."""
    act, x1, rstd, z = _to_activation(y, out, x, norm_weight, gate_up, eps, keep)
    x2: Tensor = calls.run("linear", "linear", ["d"], a=act, b=down, c=x1).d
    if keep:
        return x2, x1, rstd, z, once.link(x)
    return x2, calls.nothing(x), calls.nothing(rstd), calls.nothing(x), once.link(x)


@fake(mlp_op)
def _(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor, *, eps: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *_kept(x, gate_up, keep), once.link(x)


@torch.library.custom_op("coda_lang::llama_span", mutates_args=())
def span_op(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor,
    next_norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, eps: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x2 and the turned qkv; and x1, its rstd, z and x2's rstd if they are to be kept for the backward pass."""
    rope.positions_inside("llama_span", position, cos)
    act, x1, rstd, z = _to_activation(y, out, x, norm_weight, gate_up, eps, keep)
    end = calls.run("residual_rms", "residual_rms", ["d", "sq", "h"], a=act, b=down, c=x1, w=next_norm)
    rstd2 = residual_rms.combine_squares(end.sq, x.shape[1], eps)
    turned = _turned(end.h, qkv, rstd2, cos, sin, position, rotated)
    if keep:
        return end.d, turned, x1, rstd, z, rstd2
    return end.d, turned, calls.nothing(x), calls.nothing(rstd), calls.nothing(x), calls.nothing(rstd)


@fake(span_op)
def _(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, down: Tensor,
    next_norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, eps: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x1, rstd, z = _kept(x, gate_up, keep)
    return x.new_empty(x.shape), x.new_empty(x.shape[0], qkv.shape[0]), x1, rstd, z, torch.empty_like(rstd)


def _to_activation(
    y: Tensor, out: Tensor, x: Tensor, norm_weight: Tensor, gate_up: Tensor, eps: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """swiglu's result, x1, its rstd, and z if it is kept."""
    mid = calls.run("residual_rms", "residual_rms", ["d", "sq", "h"], a=y, b=out, c=x, w=norm_weight)
    rstd = residual_rms.combine_squares(mid.sq, x.shape[1], eps)
    asked = ["z", "y"] if keep else ["y"]
    gated = calls.run("rmsnorm_swiglu", "rmsnorm_swiglu", asked, a=mid.h, b=gate_up, rstd=rstd)
    return gated.y, mid.d, rstd, gated.z if keep else calls.nothing(x)


def _turned(
    h: Tensor, weight: Tensor, rstd: Tensor, cos: Tensor, sin: Tensor, position: Tensor, rotated: int
) -> Tensor:
    table = {"cos": cos, "sin": sin, "position": position, "rotated": rotated}
    y: Tensor = calls.run("rmsnorm_rope", "rmsnorm_rope_position", ["y"], a=h, b=weight, rstd=rstd, **table).y
    return y


def _kept(x: Tensor, gate_up: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Fake x1, rstd and z."""
    count = x.shape[0]
    if not keep:
        return calls.nothing(x), calls.nothing(x, torch.float32), calls.nothing(x)
    return x.new_empty(x.shape), x.new_empty(count, dtype=torch.float32), x.new_empty(count, gate_up.shape[0])


# -- their gradients --


def _normalised(x: Tensor, rstd: Tensor, norm_weight: Tensor) -> Tensor:
    return (x * rstd[:, None] * norm_weight).to(x.dtype)


def _rope_gradients(
    needs: tuple[bool, bool, bool], saved: tuple[Tensor, ...], rotated: int, dy: Tensor, other: Gradient
) -> tuple[Gradient, Gradient, Gradient]:
    """Of x (which has `other` from elsewhere), the norm weight and the weight."""
    need_x, need_norm, need_weight = needs
    x, norm_weight, weight, rstd, y, cos, sin, position = saved
    through = need_x or need_norm
    dz, zdz = rope.grad_op(
        dy, y if through else None, None, cos, sin, position, rotated=rotated, width=x.shape[1]
    )  # fmt: skip
    dx = dnorm = normed = None
    if through:
        dx, normed, dnorm = residual_rms.linear_grad_op(
            dz, weight, x, rstd, norm_weight, zdz, other, want_normed=need_weight, want_norm=need_norm
        )  # fmt: skip
    elif need_weight:
        normed = _normalised(x, rstd, norm_weight)
    dweight = calls.weight_gradient(dz, normed) if need_weight and normed is not None else None
    return dx, dnorm if need_norm else None, dweight


def _mlp_gradients(needs: tuple[bool, ...], saved: tuple[Any, ...], dx2: Tensor, alone: bool) -> tuple[Gradient, ...]:
    """Of y, out, x, the norm weight, gate_up and down. `alone`: x1 and z are the graph's (`kept.seen_by_nobody`)."""
    need_y, need_out, need_x, need_norm, need_gate_up, need_down = needs
    y, out, norm_weight, gate_up, down, x1, rstd, z = saved
    stream = need_y or need_out or need_x
    dx1 = dnorm = dgate_up = ddown = dz = zdz = act = normed = None
    if stream or need_norm or need_gate_up:
        dz, zdz, act = swiglu.through_linear(dx2, down, z, width=x1.shape[1], want_y=need_down, alone=alone)
    elif need_down:
        act = swiglu.recomputed(z)
    # What is large is used up as soon as it is there: z, dz and the activation together are most of the peak.
    if need_down and act is not None:
        ddown = calls.weight_gradient(dx2, act)
    act = None
    if dz is not None and zdz is not None and (stream or need_norm):
        dx1, normed, dnorm = residual_rms.linear_grad_op(
            dz, gate_up, x1, rstd, norm_weight, zdz, dx2, want_normed=need_gate_up, want_norm=need_norm
        )  # fmt: skip
    elif need_gate_up:
        normed = _normalised(x1, rstd, norm_weight)
    if alone:
        kept.give_back(x1, dx2)
    if need_gate_up and dz is not None and normed is not None:
        dgate_up = calls.weight_gradient(dz, normed)
    dz = normed = None
    if alone:
        kept.give_back(z, dx2)
    return (
        calls.input_gradient(dx1, out) if need_y and dx1 is not None else None,
        calls.weight_gradient(dx1, y) if need_out and dx1 is not None else None,
        dx1 if need_x else None,
        dnorm if need_norm else None,
        dgate_up,
        ddown,
    )


def _setup_rope(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, norm_weight, weight, *table = inputs
    y, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(rstd)
    ctx.rotated = keyword_only_inputs["rotated"]
    ctx.save_for_backward(x, norm_weight, weight, rstd, y, *table)


def _backward_rope(ctx: Any, saved: Any, dy: Gradient, _: Gradient) -> tuple[Gradient, ...]:
    if dy is None:
        return (None,) * 6
    needs = ctx.needs_input_grad[:3]
    return *_rope_gradients(needs, saved, ctx.rotated, dy, None), None, None, None


def _saved_mlp(ctx: Any, inputs: Any, x1: Tensor, rstd: Tensor, z: Tensor) -> tuple[Any, ...]:
    y, out, _, norm_weight, gate_up, down = inputs
    need_y, need_out = ctx.needs_input_grad[:2]
    return y if need_out else None, out if need_y else None, norm_weight, gate_up, down, x1, rstd, z


def _setup_mlp(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    *inner, link = output[1:]
    ctx.mark_non_differentiable(*inner)
    ctx.kept, ctx.alone = keyword_only_inputs["keep"], kept.seen_by_nobody()
    ctx.save_for_backward(*_saved_mlp(ctx, inputs, *inner), link)


def _backward_mlp(ctx: Any, saved: Any, dx2: Gradient, *_: Gradient) -> tuple[Gradient, ...]:
    if dx2 is None:
        return (None,) * 6
    calls.must_be_kept(ctx, "llama_mlp")
    return _mlp_gradients(ctx.needs_input_grad, saved[:-1], dx2, ctx.alone)


def _setup_span(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    next_norm, qkv, *table = inputs[6:]
    x2, turned, x1, rstd, z, rstd2 = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(x1, rstd, z, rstd2)
    ctx.rotated, ctx.kept = keyword_only_inputs["rotated"], keyword_only_inputs["keep"]
    ctx.alone = kept.seen_by_nobody()
    mlp = _saved_mlp(ctx, inputs[:6], x1, rstd, z)
    ctx.save_for_backward(*mlp, x2, next_norm, qkv, rstd2, turned, *table)


def _backward_span(ctx: Any, saved: Any, dx2: Gradient, dturned: Gradient, *_: Gradient) -> tuple[Gradient, ...]:
    calls.must_be_kept(ctx, "llama_span")
    mlp_needs, (need_norm, need_qkv) = ctx.needs_input_grad[:6], ctx.needs_input_grad[6:8]
    dnorm = dqkv = None
    if dturned is not None:
        needs = (any(mlp_needs), need_norm, need_qkv)
        dx2, dnorm, dqkv = _rope_gradients(needs, saved[8:], ctx.rotated, dturned, dx2)
    mlp = (None,) * 6 if dx2 is None else _mlp_gradients(mlp_needs, saved[:8], dx2, ctx.alone)
    return *mlp, dnorm, dqkv, None, None, None


once.register(rope_op, "rms_linear_rope", _backward_rope, _setup_rope)
once.register(mlp_op, "llama_mlp", _backward_mlp, _setup_mlp)
once.register(span_op, "llama_span", _backward_span, _setup_span)
