"""`linear_cross_entropy`: the loss of a language model's head, whose logits exist for a chunk of rows at most.

A total of the rows' losses has its gradients made in the forward pass (cross_entropy_total.py). Here is the other way,
for losses whose weights only the backward pass knows, or that nobody differentiates: no logit is written, and the
backward pass makes the logits' gradient from a second product, for a chunk of rows, uses it in both products, and
forgets it. Its peak, beside the inputs and the gradients it returns, is

    chunk·V·2 bytes for the chunk      + V·K·4 bytes for the weight's gradient in f32, if there is more than one chunk
"""

from typing import Any

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError
from coda_lang.torch import calls, once
from coda_lang.torch.calls import Gradient
from coda_lang.torch.cross_entropy_rows import row_losses
from coda_lang.torch.cross_entropy_total import total_op
from coda_lang.torch.inductor import fake

CHUNK_BYTES = 1 << 30
_LARGEST = 3.4e38  # in f32
ROWS_MULTIPLE = 128  # the rows of an output tile


def default_chunk(columns: int) -> int:
    """As many rows as `CHUNK_BYTES` hold of the logits, whole tiles of them."""
    return max(1, CHUNK_BYTES // (2 * max(1, columns) * ROWS_MULTIPLE)) * ROWS_MULTIPLE


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
    rstd: Tensor | None = None,
    chunk_rows: int | None = None,
) -> Tensor:
    """cross_entropy(logits, target) with logits = cap(rstd·(x @ weight.T)), as `torch.nn.functional.cross_entropy`.

    Where a gradient can follow, "mean" and "sum" make it with the loss, both from the logits of `chunk_rows` rows at a
    time, rounded to f16; one beyond 65504 makes its row's loss infinite or NaN, unless there is a softcap. "none", and
    any loss under `torch.no_grad()`, come from the logits in f32.

    Args:
        x: [..., K], bf16 or f16 (any type under autocast); with `rstd`, the h of `residual_rms_linear` or `input_rms`.
        weight: [V, K], of x's type.
        target: integers [...], each in 0 … V−1 or `ignore_index`. Any other makes its row's loss NaN.
        ignore_index: rows with this target have loss 0, gradient 0, and do not count in the mean.
        label_smoothing: ε, as PyTorch's.
        z_loss: adds z_loss·lse² to each row (PaLM, arXiv 2204.02311).
        softcap: c > 0 makes the logits c·tanh(logits/c) (Gemma 2, arXiv 2408.00118).
        reduction: "mean" over the rows that count (NaN if none does), "sum", or "none".
        rstd: f32[...], the scale of an RMSNorm before this layer.
        chunk_rows: rows whose logits are in memory at a time; by default as many as fit `CHUNK_BYTES`.

    Returns:
        f32: a scalar, or [...] for "none".

    Raises:
        ArgumentError: wrong shapes, types or options.
    """
    calls.linear_shapes(x, weight, "linear_cross_entropy")
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'linear_cross_entropy: reduction is "mean", "sum" or "none", got {reduction!r}')
    if target.shape != x.shape[:-1]:
        raise ArgumentError(f"linear_cross_entropy: target must be {list(x.shape[:-1])}, got {list(target.shape)}")
    _between("label_smoothing", label_smoothing, 0, 1)
    _between("z_loss", z_loss, -_LARGEST, _LARGEST)
    _between("softcap", softcap, 0, _LARGEST)
    _between("ignore_index", ignore_index, -(2**63), 2**63 - 1, whole=True)
    if chunk_rows is not None:
        _between("chunk_rows", chunk_rows, 1, 2**63 - 1, whole=True)
    once.refuse_forward_mode("linear_cross_entropy", x, weight, rstd)
    x, weight = calls.operands(x, weight)
    arguments = calls.rows(x), weight, calls.row_scale(rstd, x, "linear_cross_entropy"), target.reshape(-1)
    options: dict[str, Any] = {
        "ignore_index": ignore_index, "eps": label_smoothing, "zeta": z_loss, "cap": softcap,
        "chunk_rows": default_chunk(weight.shape[0]) if chunk_rows is None else chunk_rows,
    }  # fmt: skip
    batched = not torch.compiler.is_compiling() and calls.transformed(x, weight, rstd)
    if reduction != "none" and not batched and calls.any_grad(x, weight, rstd):
        loss: Tensor = total_op(
            *arguments, **options, mean=reduction == "mean", want_x=x.requires_grad, want_weight=weight.requires_grad,
            want_rstd=rstd is not None and rstd.requires_grad,
        )[0]  # fmt: skip
        return loss
    losses: Tensor = forward_op(*arguments, **options)[0]
    if reduction == "none":
        return losses.view(target.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (target.long() != ignore_index).sum()


def _between(name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    """Raises ArgumentError unless an option is a number, a whole one if asked for, from low to high."""
    if not isinstance(value, int if whole else (int, float)) or not low <= value <= high:
        kind = "an integer" if whole else "a number"
        raise ArgumentError(f"linear_cross_entropy: {name} is {kind} from {low:g} to {high:g}, got {value!r}")


@torch.library.custom_op("coda_lang::linear_cross_entropy", mutates_args=())
def forward_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss of each row and its logsumexp, both f32[M], and a link."""
    made = row_losses(x, weight, rstd, target, ignore_index=ignore_index, eps=eps, zeta=zeta, cap=cap)
    return made.losses, made.lse, once.link(made.lse)


@fake(forward_op)
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    losses = x.new_empty(x.shape[0], dtype=torch.float32)
    return losses, torch.empty_like(losses), once.link(losses)


@torch.library.custom_op("coda_lang::cross_entropy_grad", mutates_args=())
def grad_op(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor, lse: Tensor, dloss: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
    want_x: bool, want_weight: bool, want_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, of the weight and of rstd, each if asked for, in chunks of rows."""
    count = x.shape[0]
    chunks = [slice(i, min(i + chunk_rows, count)) for i in range(0, count, chunk_rows)]
    options = {"ignore_index": ignore_index, "eps": eps or None, "zeta": zeta or None, "cap": cap or None}
    name = "cross_entropy_bwd" if rstd is None else "rmsnorm_cross_entropy_bwd"
    gradient = "dz" if rstd is None else "da"
    asked = [gradient, *(["zdz"] if want_rstd else [])]
    dx = torch.empty_like(x) if want_x else calls.nothing(x)
    drstd = torch.empty_like(lse) if want_rstd else calls.nothing(lse)
    single = len(chunks) == 1
    dw = calls.nothing(weight)
    if want_weight and not single:
        dw = torch.zeros_like(weight, dtype=torch.float32, memory_format=torch.contiguous_format)
    for rows in chunks:
        scale = None if rstd is None else rstd[rows]
        row = {"a": x[rows], "rstd": scale, "lse": lse[rows], "target": target[rows], "dloss": dloss[rows]}
        out = calls.run(name, name, asked, b=weight, **row, **options)
        if want_x:
            dx[rows] = calls.input_gradient(out[gradient], weight)
        if want_weight and single:
            dw = calls.weight_gradient(out[gradient], x)
        elif want_weight:
            calls.run("linear_dw", "linear_dw_accumulate", [], a=out[gradient], b=x[rows], dw=dw)
        if scale is not None and want_rstd:
            drstd[rows] = calls.row_sums(out.zdz) / scale
        del out  # before the next chunk's is made
    return dx, dw.to(weight.dtype), drstd


@fake(grad_op)
def _(
    x: Tensor, weight: Tensor, rstd: Tensor | None, target: Tensor, lse: Tensor, dloss: Tensor,
    *, ignore_index: int, eps: float, zeta: float, cap: float, chunk_rows: int,
    want_x: bool, want_weight: bool, want_rstd: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        x.new_empty(x.shape) if want_x else calls.nothing(x),
        weight.new_empty(weight.shape) if want_weight else calls.nothing(weight),
        torch.empty_like(lse) if want_rstd else calls.nothing(lse),
    )


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.options = keyword_only_inputs
    ctx.save_for_backward(*inputs, *output[1:])


def _backward(ctx: Any, saved: Any, dlosses: Gradient, *_: Gradient) -> tuple[Gradient, Gradient, Gradient, None]:
    if dlosses is None:
        return None, None, None, None
    need_x, need_weight, need_rstd, _ = ctx.needs_input_grad
    dx, dw, drstd = grad_op(
        *saved[:-1], dlosses, **ctx.options, want_x=need_x, want_weight=need_weight, want_rstd=need_rstd
    )  # fmt: skip
    return dx if need_x else None, dw if need_weight else None, drstd if need_rstd else None, None


once.register(forward_op, "linear_cross_entropy", _backward, _setup)
