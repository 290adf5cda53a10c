"""Liger's kernels in the plain Llama, the four with which it patches Transformers' model."""

from __future__ import annotations

from liger_kernel.transformers.functional import (
    liger_fused_linear_cross_entropy,
    liger_rms_norm,
    liger_rope,
    liger_swiglu,
)
from plain_llama import Parts
from torch import Tensor


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor = liger_rms_norm(x, weight, eps)
    return y


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned: tuple[Tensor, Tensor] = liger_rope(q, k, cos[None].to(q.dtype), sin[None].to(q.dtype))
    return turned


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    y: Tensor = liger_swiglu(gate, up)
    return y


def _loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    loss: Tensor = liger_fused_linear_cross_entropy(x.flatten(0, 1), weight, target.flatten())
    return loss


LIGER = Parts(_norm, _rotate, _gated, _loss)
