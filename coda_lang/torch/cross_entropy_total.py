"""The sum or mean of a head's losses, whose gradients are made with it, while the logits are there.

For each chunk of rows: the losses, the logits in f16, the logits' gradient in their place, and both products of it.
Each row weighs the same there. What the loss is then multiplied by, the backward pass does to the gradients. The peak,
beside the inputs, is

    chunk·V·2 bytes for the chunk
    M·K·2 bytes for the gradient of x
    V·K·4 bytes for the weight's gradient in f32, or V·K·2 for one in bf16, where there is only one chunk

The last two are held until the backward pass, which adds the gradients that it returns. x and the weight are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coda_lang.torch import calls, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.cross_entropy_rows import row_losses
from coda_lang.torch.inductor import fake

# The weight of a row in the gradients that are kept. A probability below 3e-8 is 0 in f16, and a vocabulary has many:
# 64 times that is left of them, and 64·rstd stays far from f16's largest number for any eps of a norm.
ROW_WEIGHT = {torch.bfloat16: 1.0, torch.float16: 64.0}


@torch.library.custom_op("coda_lang::linear_cross_entropy_total", mutates_args=())
def total_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
    mean: bool, want_x: bool, want_weight: bool, want_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss f32[]; of a mean, the rows that count; the sum's gradients that are asked for; and a link."""
    count = x.shape[0]
    losses = x.new_empty(count, dtype=torch.float32)
    dx, dw, drstd = _gradients(x, weight, chunk_rows, want_x, want_weight, want_rstd)
    if not count:
        dw.zero_()
    for start in range(0, count, chunk_rows):
        rows = slice(start, min(start + chunk_rows, count))
        scale = None if rstd is None else rstd[rows]
        losses[rows] = _chunk(
            x[rows], weight, scale, target[rows], dx[rows] if want_x else None, dw if want_weight else None,
            drstd[rows] if want_rstd else None, first=not start,
            options={"ignore_index": ignore_index, "eps": eps, "zeta": zeta, "cap": cap},
        )  # fmt: skip
    counted = (target.long() != ignore_index).sum() if mean else calls.nothing(target, torch.int64)
    total = losses.sum()
    return total / counted if mean else total, counted, dx, dw, drstd, once.link(losses)


def _chunk(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    dx: Tensor | None, dw: Tensor | None, drstd: Tensor | None, *, first: bool, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The losses of some rows; writes their dx and drstd, and writes or adds to dw. Its logits are gone afterwards."""
    made = row_losses(x, weight, rstd, target, **options, keep=True)
    assert made.kept is not None
    gradient = "da" if x.dtype == torch.bfloat16 else "da16"
    weighed = ROW_WEIGHT[x.dtype]
    products = dx is not None or dw is not None
    out = calls.run(
        "cross_entropy_bwd_map", "cross_entropy_bwd_map",
        [*([gradient] if products else []), *(["zdz"] if drstd is not None else [])],
        x=made.kept, lse=made.lse, target=target, rstd=rstd, ignore_index=options["ignore_index"],
        dloss=None if weighed == 1 else torch.full_like(made.lse, weighed),
        **{n: options[n] or None for n in ("eps", "zeta", "cap")},
        out={gradient: made.kept.view(x.dtype)} if products else None,
    )  # fmt: skip
    if dx is not None:
        torch.mm(out[gradient], weight, out=dx)
    if dw is not None and dw.dtype == x.dtype:
        torch.mm(out[gradient].T, x, out=dw)
    elif dw is not None and first:
        calls.run("linear_dw", "linear_dw_f32", ["dw"], a=out[gradient], b=x, out={"dw": dw})
    elif dw is not None:
        calls.run("linear_dw", "linear_dw_accumulate", [], a=out[gradient], b=x, dw=dw)
    if drstd is not None and rstd is not None:
        torch.div(calls.row_sums(out.zdz), rstd, out=drstd)
    return made.losses


def _gradients(
    x: Tensor, weight: Tensor, chunk_rows: int, want_x: bool, want_weight: bool, want_rstd: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what is asked for. The weight's is f32 where chunks add up, and where the sum could leave f16."""
    wide = x.dtype == torch.float16 or x.shape[0] > chunk_rows
    return (
        x.new_empty(x.shape) if want_x else calls.nothing(x),
        weight.new_empty(weight.shape if want_weight else 0, dtype=torch.float32 if wide else weight.dtype),
        x.new_empty(x.shape[0] if want_rstd else 0, dtype=torch.float32),
    )


@fake(total_op)
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
    mean: bool, want_x: bool, want_weight: bool, want_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    loss = x.new_empty((), dtype=torch.float32)
    counted = target.new_empty((), dtype=torch.int64) if mean else calls.nothing(target, torch.int64)
    return loss, counted, *_gradients(x, weight, chunk_rows, want_x, want_weight, want_rstd), once.link(loss)


@torch.library.custom_op("coda_lang::scaled", mutates_args=())
def scaled_op(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """scale·x of a matrix x, in f32 and rounded once to `dtype`, in one pass over memory."""
    y = "y" if dtype == torch.bfloat16 else "y16"
    out: Tensor = calls.run("scaled", "scaled", [y], x=x, scale=scale)[y]
    return out


@fake(scaled_op)
def _(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:-1])
    ctx.options, ctx.dtype = keyword_only_inputs, inputs[1].dtype
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, saved: Any, dloss: Gradient, *_: Gradient) -> tuple[Gradient, Gradient, Gradient, None]:
    if dloss is None:
        return None, None, None, None
    need_x, need_weight, need_rstd, _ = ctx.needs_input_grad
    for needed, name in ((need_x, "want_x"), (need_weight, "want_weight"), (need_rstd, "want_rstd")):
        if needed and not ctx.options[name]:
            raise RuntimeError(f"coda_lang::linear_cross_entropy_total ran with {name}=False, so it lacks a gradient")
    counted, dx, dw, drstd, _ = saved
    # Without a row that counts the gradients are 0, as PyTorch's, and stay 0 if the scale is finite.
    scale = (dloss / counted.clamp(min=1) if ctx.options["mean"] else dloss) / ROW_WEIGHT[ctx.dtype]
    return (
        scaled_op(dx, scale, dtype=ctx.dtype) if need_x else None,
        scaled_op(dw, scale, dtype=ctx.dtype) if need_weight else None,
        drstd * scale if need_rstd else None,
        None,
    )


once.register(total_op, "linear_cross_entropy", _backward, _setup)
