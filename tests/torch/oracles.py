"""Plain PyTorch definitions, and what a fused operation is held to: f64 autograd, as near as PyTorch's bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Outputs = Tensor | tuple[Tensor, ...]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_sq": lambda z: F.relu(z) ** 2,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def swiglu(z: Tensor) -> Tensor:
    return F.silu(z[..., 0::2]) * z[..., 1::2]


def rotate_pairs(z: Tensor, cos: Tensor, sin: Tensor, position: Tensor, rotated: int) -> Tensor:
    """Each pair of columns as a complex number, times cos + i·sin."""
    cos, sin = (t.to(torch.float64)[position].unsqueeze(-2) for t in (cos, sin))
    heads = z[..., :rotated].reshape(*z.shape[:-1], -1, cos.shape[-1], 2)
    x, y = heads[..., 0], heads[..., 1]
    turned = torch.stack([x * cos - y * sin, x * sin + y * cos], -1).to(z.dtype)
    return torch.cat([turned.reshape(*z.shape[:-1], rotated), z[..., rotated:]], -1)


def logits(x: Tensor, weight: Tensor, softcap: float = 0.0) -> Tensor:
    z = F.linear(x, weight)
    z = z if z.dtype == torch.float64 else z.float()
    return softcap * torch.tanh(z / softcap) if softcap else z


def cross_entropy(
    z: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    flat, labels = z.reshape(-1, z.shape[-1]), target.reshape(-1)
    losses = F.cross_entropy(flat, labels, reduction="none", **options)
    losses = losses + torch.where(labels == ignore_index, 0.0, z_loss * flat.logsumexp(-1) ** 2)
    if reduction == "none":
        return losses.view(target.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (labels != ignore_index).sum()


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def gradients(f: Callable[..., Outputs], tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Outputs and input gradients of f for fixed output gradients, by name; in `dtype`, or the tensors' own types."""
    given = {k: t.detach().clone().to(dtype or t.dtype).requires_grad_() for k, t in tensors.items()}
    outputs = f(**given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    upstream = [normal(*y.shape, dtype=torch.bfloat16, seed=100 + i).to(y.dtype) for i, y in enumerate(outputs)]
    torch.autograd.backward(outputs, upstream)
    got = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    for name, t in given.items():
        assert t.grad is not None, f"no gradient of {name}"
        assert t.grad.dtype == t.dtype
        got[f"d{name}"] = t.grad
    return got


def relative(got: Tensor, exact: Tensor) -> float:
    return ((got.detach().double() - exact).norm() / exact.norm()).item()


def hold(
    ours: Callable[..., Outputs],
    plain: Callable[..., Outputs],
    tensors: Mapping[str, Tensor],
    slack: float = 1.0,
    vectors: float = 1.0,
) -> dict[str, float]:
    """Each output and gradient of `ours` is as near to f64 as that of `plain` in bf16.

    `slack` is the factor allowed, and `vectors` one more for tensors of one dimension, where chance weighs more.
    Returns the ratios of our errors to plain's.
    """
    exact = gradients(plain, tensors, torch.float64)
    theirs = gradients(plain, tensors, torch.bfloat16)
    mine = gradients(ours, tensors, None)
    ratios = {}
    for name, x in exact.items():
        error, allowed = relative(mine[name], x), relative(theirs[name], x)
        factor = slack * (vectors if x.dim() == 1 else 1.0)
        assert error <= max(factor * allowed, 2**-9), f"{name}: {error:.3e}, PyTorch's bf16 {allowed:.3e}"
        ratios[name] = error / max(allowed, 1e-30)
    return ratios
