"""`linear_rope`: a projection whose heads are turned by rotary position embeddings in the epilogue."""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.inductor import fake


def rope_tables(positions: int, head_dim: int, theta: float = 10000.0, device: Any = None) -> tuple[Tensor, Tensor]:
    """cos and sin f32[positions, head_dim/2] of position·theta^(−2j/head_dim), made in f64 (arXiv 2104.09864)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64, device=device), frequency)
    return angle.cos().float(), angle.sin().float()


def linear_rope(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    rotated: int | None = None,
    rstd: Tensor | None = None,
    *,
    head_dim: int,
) -> Tensor:
    """rotate(rstd·(x @ weight.T)): each pair of columns (2j, 2j+1) of each head turned by its position's angle.

    Args:
        x: [..., K], bf16 or f16 (any type under autocast); with `rstd`, the h of `residual_rms_linear` or `input_rms`.
        weight: [N, K], of x's type: N/D heads of D rows, rotary pairs interleaved (`rotary_to_pairs`).
        cos, sin: [P, D/2], of any floating type; they get no gradient.
        position: i32 or i64 [...], each in 0 … P−1. Any other makes its row NaN on a GPU.
        rotated: columns from here on stay (the values of a joint projection); all are turned by default.
        rstd: f32[...], the scale of an RMSNorm before this layer.
        head_dim: D.

    Returns:
        [..., N] of x's type.

    Raises:
        ArgumentError: wrong shapes or types, or, on the CPU, a position outside the table.
    """
    calls.linear_shapes(x, weight, "linear_rope")
    rotated = weight.shape[0] if rotated is None else rotated
    table_shapes("linear_rope", x, weight, cos, sin, position, rotated, head_dim)
    once.refuse_forward_mode("linear_rope", x, weight, rstd, cos, sin)
    x, weight = calls.operands(x, weight)
    y, _ = forward_op(
        calls.rows(x), weight, calls.row_scale(rstd, x, "linear_rope"), cos.float(), sin.float(),
        position.reshape(-1), rotated=rotated,
    )  # fmt: skip
    return calls.unrows(y, x)


def table_shapes(
    name: str, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, position: Tensor, rotated: int, head_dim: int
) -> None:
    """Raises ArgumentError unless the table is one for heads of this width: any other would turn other pairs."""
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] != head_dim or not head_dim:
        text = f"cos and sin must be [P, {head_dim}/2], half the width of a head"
        twice = "; of a table that holds each angle twice, the first half of the columns will do"
        got = f"{list(cos.shape)} and {list(sin.shape)}"
        raise ArgumentError(f"{name}: {text}, got {got}{twice if cos.shape[-1] == head_dim else ''}")
    rows = weight.shape[0]
    if rows % head_dim or rotated % head_dim or not 0 <= rotated <= rows:
        text = f"the weight's {rows} rows, and the {rotated} of them that are rotated,"
        raise ArgumentError(f"{name}: {text} must be whole heads of width {head_dim}")
    if position.shape != x.shape[:-1] or position.dtype not in (torch.int32, torch.int64):
        got = f"{str(position.dtype).removeprefix('torch.')} {list(position.shape)}"
        raise ArgumentError(f"{name}: position must be int32 or int64 {list(x.shape[:-1])}, got {got}")


def positions_inside(name: str, position: Tensor, cos: Tensor) -> None:
    """Raises ArgumentError if a position on the CPU lies outside the table; a GPU is not waited for.

    Such a row is NaN, and on the CPU `scaled_dot_product_attention` makes plausible numbers of it.
    """
    if position.device.type != "cpu" or not position.numel():
        return
    low, high = (int(p) for p in torch.aminmax(position))
    if low < 0 or high >= cos.shape[0]:
        wrong = low if low < 0 else high
        raise ArgumentError(f"{name}: position {wrong} is outside the table, which has {cos.shape[0]} rows")


@torch.library.custom_op("coda_lang::linear_rope", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, cos: Tensor, sin: Tensor, position: Tensor, *, rotated: int
) -> tuple[Tensor, Tensor]:
    """y and a link; a rotation keeps Σ z·dz, so nothing else need be kept."""
    positions_inside("linear_rope", position, cos)
    name = "rope" if rstd is None else "rmsnorm_rope"
    table = {"cos": cos, "sin": sin, "position": position, "rotated": rotated}
    y: Tensor = calls.run(name, f"{name}_position", ["y"], a=x, b=weight, rstd=rstd, **table).y
    return y, once.link(x)


@fake(forward_op)
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, cos: Tensor, sin: Tensor, position: Tensor, *, rotated: int
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), once.link(x)


@torch.library.custom_op("coda_lang::rope_grad", mutates_args=())
def grad_op(
    dy: Tensor, y: Tensor | None, rstd: Tensor | None, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, width: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dz: dy turned back (times rstd, if given). With the saved y, also Σ y·dy = Σ z·dz of each row over `width`."""
    asked = ["dz", "zdz"] if y is not None else ["dz"]
    saved = dy if y is None else y  # dy stands in for a y that no output reads
    table = {"cos": cos, "sin": sin, "position": position, "rotated": rotated}
    out = calls.run("rope_bwd", "rope_position_bwd_map", asked, dy=dy, y=saved, rstd=rstd, **table)
    return out.dz, calls.row_sums(out.zdz, width) if y is not None else calls.nothing(dy, torch.float32)


@fake(grad_op)
def _(
    dy: Tensor, y: Tensor | None, rstd: Tensor | None, cos: Tensor, sin: Tensor, position: Tensor,
    *, rotated: int, width: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return dy.new_empty(dy.shape), dy.new_empty(0 if y is None else dy.shape[0], dtype=torch.float32)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    x, weight, rstd, cos, sin, position = inputs
    y, link = output
    need_x, need_weight, need_rstd = ctx.needs_input_grad[:3]
    ctx.set_materialize_grads(False)
    ctx.rotated = keyword_only_inputs["rotated"]
    ctx.save_for_backward(
        x if need_weight else None, weight if need_x else None, rstd, cos, sin, position, y if need_rstd else None, link
    )  # fmt: skip


def _backward(ctx: Any, saved: Any, dy: Gradient, _: Gradient) -> tuple[Gradient, Gradient, Gradient, None, None, None]:
    if dy is None:
        return None, None, None, None, None, None
    x, weight, rstd, cos, sin, position, y, _ = saved
    need_x, need_weight, need_rstd = ctx.needs_input_grad[:3]
    dz, zdz = grad_op(dy, y if need_rstd else None, rstd, cos, sin, position, rotated=ctx.rotated, width=1)
    return (
        calls.input_gradient(dz, weight) if need_x else None,
        calls.weight_gradient(dz, x) if need_weight else None,
        zdz / rstd if need_rstd else None,  # z = rstd·acc, so drstd = Σ acc·dz = Σ z·dz / rstd
        None,
        None,
        None,
    )


once.register(forward_op, "linear_rope", _backward, _setup)
