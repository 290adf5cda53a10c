"""Modules for a PyTorch model: SwiGLU, LinearCrossEntropy, LlamaBlock, and a run of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coda_lang.errors import ArgumentError
from coda_lang.torch.cross_entropy import linear_cross_entropy
from coda_lang.torch.llama import llama_mlp, llama_span, rms_linear_rope
from coda_lang.torch.swiglu import swiglu_mlp
from coda_lang.torch.weights import interleave_gate_up

_LOSS_OPTIONS = {"ignore_index", "label_smoothing", "z_loss", "softcap", "reduction", "chunk_rows"}


def _weight(rows: int, columns: int, device: Any, dtype: Any) -> nn.Parameter:
    """As `nn.Linear` starts: uniform within ±1/√columns."""
    bound = max(1, columns) ** -0.5
    return nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype).uniform_(-bound, bound))


class SwiGLU(nn.Module):
    """down(silu(gate(x))·up(x)), x [..., hidden]; gate and up are one weight, interleaved."""

    def __init__(self, hidden: int, intermediate: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.gate_up = _weight(2 * intermediate, hidden, device, dtype)
        self.down = _weight(hidden, intermediate, device, dtype)

    @classmethod
    def from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> SwiGLU:
        """A module with copies of the weights of three linear layers without bias. Raises ArgumentError."""
        if any(layer.bias is not None for layer in (gate, up, down)):
            raise ArgumentError("SwiGLU has no biases")
        new = cls(gate.in_features, gate.out_features, device=gate.weight.device, dtype=gate.weight.dtype)
        with torch.no_grad():
            new.gate_up.copy_(interleave_gate_up(gate.weight, up.weight))
            new.down.copy_(down.weight)
        return new

    def forward(self, x: Tensor) -> Tensor:
        return swiglu_mlp(x, self.gate_up, self.down)


class LinearCrossEntropy(nn.Module):
    """The head of a language model with its loss; no tensor holds all logits. Options: `linear_cross_entropy`'s."""

    def __init__(self, hidden: int, vocabulary: int, *, device: Any = None, dtype: Any = None, **options: Any) -> None:
        super().__init__()
        unknown = options.keys() - _LOSS_OPTIONS
        if unknown:
            raise TypeError(
                f"LinearCrossEntropy takes {', '.join(sorted(_LOSS_OPTIONS))}, got {', '.join(sorted(unknown))}"
            )
        self.weight = _weight(vocabulary, hidden, device, dtype)
        self.options = options

    def forward(self, x: Tensor, target: Tensor, rstd: Tensor | None = None) -> Tensor:
        return linear_cross_entropy(x, self.weight, target, rstd=rstd, **self.options)

    def extra_repr(self) -> str:
        shown = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"hidden={self.weight.shape[1]}, vocabulary={self.weight.shape[0]}{shown}"


class LlamaBlock(nn.Module):
    """A Llama layer: x1 = x + attention(rmsnorm(x)), then x1 + swiglu(rmsnorm(x1)), with grouped-query attention.

    Attention itself is `torch.nn.functional.scaled_dot_product_attention`, causal. The weights are in the order of
    `coda_lang.torch.weights`: `block.load_state_dict(from_llama(state, heads, kv_heads))` takes a standard layer's.
    Several blocks in a row are faster through `run_blocks`.
    """

    def __init__(
        self, hidden: int, intermediate: int, heads: int, kv_heads: int | None = None,
        *, head_dim: int | None = None, eps: float = 1e-5, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.kv_heads, self.eps = heads, heads if kv_heads is None else kv_heads, eps
        if self.kv_heads < 1 or self.heads % self.kv_heads or (head_dim is None and hidden % heads):
            text = f"heads, a multiple of kv_heads, that share the {hidden} columns unless head_dim is given"
            raise ArgumentError(f"LlamaBlock needs {text}, got {heads} heads and {self.kv_heads} kv_heads")
        self.head_dim = hidden // heads if head_dim is None else head_dim
        if self.head_dim < 2 or self.head_dim % 2:
            raise ArgumentError(f"LlamaBlock needs heads of an even width, got {self.head_dim}")
        width = self.heads * self.head_dim
        self.attention_norm = nn.Parameter(torch.ones(hidden, device=device, dtype=dtype))
        self.qkv = _weight(width + 2 * self.kv_heads * self.head_dim, hidden, device, dtype)
        self.out = _weight(hidden, width, device, dtype)
        self.mlp_norm = nn.Parameter(torch.ones(hidden, device=device, dtype=dtype))
        self.gate_up = _weight(2 * intermediate, hidden, device, dtype)
        self.down = _weight(hidden, intermediate, device, dtype)

    @property
    def rotated(self) -> int:
        """The columns of qkv that are turned: the queries and keys."""
        return (self.heads + self.kv_heads) * self.head_dim

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor | None = None) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden].

        Args:
            cos, sin: `rope_tables`, [P, head_dim/2].
            position: i32 or i64 [B, T], each in 0 … P−1; by default 0 … T−1.

        Raises:
            ArgumentError: wrong shapes or types, a table shorter than T without positions, or, on the CPU, a position
                outside the table. On a GPU that makes its row NaN.
        """
        return run_blocks([self], x, cos, sin, position)

    def attention(self, qkv: Tensor) -> Tensor:
        """[B, T, (heads + 2·kv_heads)·D], already turned → [B, T, heads·D]."""
        parts = qkv.view(*qkv.shape[:2], -1, self.head_dim)
        # Split before the transposition, so that the gradients are joined as qkv lies, in one copy.
        q, k, v = (x.transpose(1, 2) for x in torch.split(parts, [self.heads, self.kv_heads, self.kv_heads], 2))
        grouped = self.heads != self.kv_heads
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return y.transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        sizes = f"hidden={self.qkv.shape[1]}, intermediate={self.down.shape[1]}"
        return f"{sizes}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, eps={self.eps}"


def run_blocks(
    blocks: Sequence[LlamaBlock] | nn.ModuleList, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor | None = None
) -> Tensor:
    """Blocks one after another, each span between two attentions as one operation.

    The same function as calling them in turn, with fewer passes over the residual stream. Arguments and result as in
    `LlamaBlock.forward`. Raises ArgumentError as that does, and if the blocks' eps differ.
    """
    if x.dim() != 3:
        raise ArgumentError(f"run_blocks: x must be [B, T, hidden], got {list(x.shape)}")
    if position is None:
        if cos.dim() == 2 and x.shape[1] > cos.shape[0]:
            rows = f"cos and sin have {cos.shape[0]} rows, and x {x.shape[1]} positions"
            raise ArgumentError(f"run_blocks: {rows}: make longer tables with rope_tables")
        position = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    layers: list[Any] = list(blocks)
    if not layers:
        return x
    first = layers[0]
    if any(block.eps != first.eps for block in layers):
        raise ArgumentError("run_blocks: the blocks must share one eps")
    qkv = rms_linear_rope(
        x, first.attention_norm, first.qkv, cos, sin, position, first.rotated, first.eps, head_dim=first.head_dim
    )  # fmt: skip
    for block, after in zip(layers, [*layers[1:], None], strict=True):
        y = block.attention(qkv)
        mlp = (y, block.out, x, block.mlp_norm, block.gate_up, block.down)
        if after is None:
            return llama_mlp(*mlp, block.eps)
        x, qkv = llama_span(
            *mlp, after.attention_norm, after.qkv, cos, sin, position, after.rotated, block.eps,
            head_dim=after.head_dim,
        )  # fmt: skip
    return x
