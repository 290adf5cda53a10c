"""A Llama language model in plain PyTorch, from its usual definition: the baseline of the examples and of the tests.

Names, `rotate_half` and the order of the weights are those of Hugging Face Transformers' Llama. It runs in any floating
type; under autocast its residual stream is what the embedding gives it. What lies between the products can be replaced:
`Parts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int = 256
    hidden: int = 384
    intermediate: int = 1024
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    eps: float = 1e-5
    theta: float = 10000.0
    context: int = 512

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * normed).to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [B, heads, T, D], turned by the angles of `rotary` [T, D]."""
    cos, sin = cos.to(q.dtype), sin.to(q.dtype)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def head_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy of x [..., hidden] through a head [vocabulary, hidden]."""
    return F.cross_entropy(F.linear(x, weight).float().flatten(0, 1), target.flatten())


@dataclass(frozen=True)
class Parts:
    """The functions between the products, and the loss."""

    norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = rotate
    gated: Callable[[Tensor, Tensor], Tensor] = gated
    loss: Callable[[Tensor, Tensor, Tensor], Tensor] = head_loss


PLAIN = Parts()


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.parts = eps, parts

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c: Config, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.parts = c.heads, c.kv_heads, parts
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned, and values: [B, heads, T, D] each."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        return *self.parts.rotate(q, k, cos, sin), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, c: Config, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down_proj = nn.Linear(c.intermediate, c.hidden, bias=False)
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.parts.gated(self.gate_proj(x), self.up_proj(x)))
        return out


class Layer(nn.Module):
    def __init__(self, c: Config, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.eps, parts)
        self.self_attn = Attention(c, parts)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps, parts)
        self.mlp = MLP(c, parts)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def rotary(c: Config, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim], each half of the columns holding every angle once."""
    angle = torch.outer(
        torch.arange(length, dtype=torch.float64),
        c.theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim),
    )
    angle = torch.cat([angle, angle], -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


class PlainLlama(nn.Module):
    """forward(tokens, target) is the mean cross-entropy; `stream` is the type of the residual stream."""

    def __init__(self, c: Config, stream: torch.dtype = torch.bfloat16, parts: Parts = PLAIN) -> None:
        super().__init__()
        self.config, self.stream, self.parts = c, stream, parts
        self.embed_tokens = nn.Embedding(c.vocabulary, c.hidden)
        self.layers = nn.ModuleList(Layer(c, parts) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps, parts)
        self.lm_head = nn.Linear(c.hidden, c.vocabulary, bias=False)
        cos, sin = rotary(c, c.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed_tokens(tokens).to(self.stream)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.parts.loss(self.norm(x), self.lm_head.weight, target)
