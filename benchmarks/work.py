"""What is measured: a program of `programs/`, its arguments, and the same work in PyTorch.

The PyTorch functions compute the same outputs in the same element types. They are what `torch.compile` gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

Tensors = dict[str, Any]
BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Work:
    """One row of the table: `arguments(m, n, k)` makes a call's inputs on the GPU, `torch` computes what it returns."""

    file: str
    kernel: str
    label: str
    arguments: Callable[[int, int, int], Tensors]
    torch: Callable[..., Any]
    outputs: tuple[str, ...] | None = None
    layout: str = "nt"  # how the operands lie: row- or column-major, for cuBLAS's plain product
    group: str = "no tile loaded"


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def operands(m: int, n: int, k: int, layout: str = "nt") -> Tensors:
    """a [m, k] and b [n, k], or their transposes."""
    a = normal(m, k) if layout[0] == "n" else normal(k, m)
    b = normal(n, k, scale=k**-0.5) if layout[1] == "t" else normal(k, n, scale=k**-0.5)
    return {"a": a, "b": b}


def product(t: Tensors, layout: str) -> torch.Tensor:
    return (t["a"] if layout[0] == "n" else t["a"].T) @ (t["b"].T if layout[1] == "t" else t["b"])


def _rstd(m: int) -> torch.Tensor:
    return torch.rand(m, device="cuda") + 0.5


def _swiglu(z: torch.Tensor) -> torch.Tensor:
    return F.silu(z[:, 0::2]) * z[:, 1::2]


def _turn(z: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x, y = z[:, 0::2].float(), z[:, 1::2].float()
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1).reshape(z.shape).to(z.dtype)


def _rope_position(a: Any, b: Any, cos: Any, sin: Any, position: Any, D: int) -> torch.Tensor:
    z = a @ b.T
    heads = z.shape[1] // D
    return _turn(z, cos[position].repeat(1, heads), sin[position].repeat(1, heads))


def _residual_rms(a: Any, b: Any, c: Any, w: Any) -> Any:
    d = a @ b.T + c
    wide = d.float()
    return d, wide.square().sum(-1), (wide * w).to(BF16)


def _residual_rms_bwd(a: Any, b: Any, c: Any, rstd: Any, w: Any, zdz: Any, o: Any) -> Any:
    g = (a @ b).float()
    cn = c.float() * rstd[:, None]
    o_new = (o.float() + (g * w - cn * zdz[:, None]) * rstd[:, None]).to(BF16)
    return o_new, (cn * w).to(BF16), (g * cn).sum(0)


def _swiglu_bwd(a: Any, b: Any, z: Any) -> Any:
    dy = (a @ b).float()
    g, u = z[:, 0::2].float(), z[:, 1::2].float()
    sigma = torch.sigmoid(g)
    s = g * sigma
    du, dg = dy * s, dy * u * (sigma + s * (1 - sigma))
    dz = torch.stack([dg, du], -1).reshape(z.shape).to(BF16)
    return (s * u).to(BF16), dz, (g * dg + u * du).sum(-1)


def _cross_entropy(a: Any, b: Any, target: Any) -> Any:
    z = (a @ b.T).float()
    return torch.logsumexp(z, -1), z.gather(1, target[:, None])[:, 0]


def _with(**more: Callable[[int, int, int], Any]) -> Callable[[int, int, int], Tensors]:
    return lambda m, n, k: operands(m, n, k) | {name: make(m, n, k) for name, make in more.items()}


HEAD = 128

WORK = (
    Work("linear", "linear", "linear (a·bᵀ)", operands, lambda a, b: a @ b.T),
    Work("linear_dx", "linear_dx", "linear (a·b)", lambda m, n, k: operands(m, n, k, "nn"), lambda a, b: a @ b,
         layout="nn"),
    Work("linear_dw", "linear_dw", "linear (aᵀ·b)", lambda m, n, k: operands(m, n, k, "tn"), lambda a, b: a.T @ b,
         layout="tn"),
    Work("rmsnorm_linear", "rmsnorm_linear", "row scale", _with(rstd=lambda m, n, k: _rstd(m)),
         lambda a, b, rstd: ((a @ b.T) * rstd[:, None]).to(BF16)),
    Work("linear_act", "linear_silu", "silu", operands, lambda a, b: F.silu(a @ b.T), ("y",)),
    Work("linear_act", "linear_gelu", "gelu", operands, lambda a, b: F.gelu(a @ b.T), ("y",)),
    Work("rmsnorm_swiglu", "rmsnorm_swiglu", "row scale + SwiGLU, both stored", _with(rstd=lambda m, n, k: _rstd(m)),
         lambda a, b, rstd: (z := ((a @ b.T) * rstd[:, None]).to(BF16), _swiglu(z))),
    Work("swiglu", "swiglu", "SwiGLU, y alone", operands, lambda a, b: _swiglu(a @ b.T), ("y",)),
    Work("rope", "rope_position", "RoPE, small table",
         _with(cos=lambda m, n, k: torch.rand(4096, HEAD // 2, device="cuda"),
               sin=lambda m, n, k: torch.rand(4096, HEAD // 2, device="cuda"),
               position=lambda m, n, k: torch.arange(m, device="cuda", dtype=torch.int32) % 4096,
               D=lambda m, n, k: HEAD),
         _rope_position),
    Work("cross_entropy", "cross_entropy", "cross-entropy statistics",
         _with(target=lambda m, n, k: torch.randint(n, (m,), device="cuda")), _cross_entropy, ("lse", "t")),
    Work("residual_rms", "residual_rms", "residual + partial RMS",
         _with(c=lambda m, n, k: normal(m, n), w=lambda m, n, k: torch.rand(n, device="cuda")), _residual_rms,
         group="one tile loaded"),
    Work("residual_rms_bwd", "residual_rms_bwd", "residual + RMS, backward",
         lambda m, n, k: operands(m, n, k, "nn") | {
             "c": normal(m, n), "rstd": _rstd(m), "w": torch.rand(n, device="cuda"),
             "zdz": torch.randn(m, device="cuda"), "o": normal(m, n)},
         _residual_rms_bwd, layout="nn", group="backward"),
    Work("swiglu_bwd", "swiglu_bwd", "SwiGLU, backward",
         lambda m, n, k: operands(m, n, k, "nn") | {"z": normal(m, 2 * n)}, _swiglu_bwd, ("y", "dz", "zdz"),
         layout="nn", group="backward"),
)  # fmt: skip
