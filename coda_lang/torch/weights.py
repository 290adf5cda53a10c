"""The weights of a standard Llama layer in the order that the epilogues need, and back.

An epilogue meets columns 2j and 2j+1 together, so gate j and up j are neighbours, and so are the two rows of a rotary
pair, which the usual layout (`rotate_half`) keeps half a head apart. Attention does not see the order of a head's
columns as long as queries and keys share it; values keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coda_lang.errors import ArgumentError


def interleave_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """gate, up [I, ...] → [2·I, ...] with gate j in row 2j and up j in row 2j+1. Raises ArgumentError."""
    if gate.shape != up.shape:
        raise ArgumentError(f"gate and up must have one shape, got {list(gate.shape)} and {list(up.shape)}")
    return torch.stack([gate, up], 1).flatten(0, 1)


def split_gate_up(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """The way back from `interleave_gate_up`. Raises ArgumentError."""
    if gate_up.shape[0] % 2:
        raise ArgumentError(f"gate_up must have an even number of rows, got {gate_up.shape[0]}")
    return gate_up[0::2].contiguous(), gate_up[1::2].contiguous()


def rotary_to_pairs(weight: Tensor, heads: int) -> Tensor:
    """[heads·D, ...]: within each head, rows j and j + D/2 become rows 2j and 2j+1. Raises ArgumentError."""
    return _by_head(weight, heads, (2, -1)).transpose(1, 2).reshape(weight.shape)


def pairs_to_rotary(weight: Tensor, heads: int) -> Tensor:
    """The way back from `rotary_to_pairs`. Raises ArgumentError."""
    return _by_head(weight, heads, (-1, 2)).transpose(1, 2).reshape(weight.shape)


def _by_head(weight: Tensor, heads: int, split: tuple[int, int]) -> Tensor:
    if heads < 1 or weight.shape[0] % (2 * heads):
        raise ArgumentError(f"{weight.shape[0]} rows are not {heads} heads of an even width")
    return weight.reshape(heads, *split, *weight.shape[1:])


def pack_qkv(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The projections of a standard layer → one weight [(heads + 2·kv_heads)·D, hidden]. Raises ArgumentError."""
    return torch.cat([rotary_to_pairs(q, heads), rotary_to_pairs(k, kv_heads), v])


def unpack_qkv(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The way back from `pack_qkv`. Raises ArgumentError."""
    if qkv.shape[0] % (heads + 2 * kv_heads):
        raise ArgumentError(f"{qkv.shape[0]} rows are not {heads} + 2·{kv_heads} heads")
    width = qkv.shape[0] // (heads + 2 * kv_heads)
    q, k, v = torch.split(qkv, [heads * width, kv_heads * width, kv_heads * width])
    return pairs_to_rotary(q, heads), pairs_to_rotary(k, kv_heads), v.clone()


def from_llama(state: Mapping[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """A standard layer's state, with Hugging Face's names (`self_attn.q_proj.weight`, …) → a `LlamaBlock`'s.

    Raises:
        KeyError: a weight is missing.
        ArgumentError: shapes do not fit the heads.
    """
    q, k, v = (state[f"self_attn.{n}_proj.weight"] for n in "qkv")
    return {
        "attention_norm": state["input_layernorm.weight"],
        "qkv": pack_qkv(q, k, v, heads, kv_heads),
        "out": state["self_attn.o_proj.weight"],
        "mlp_norm": state["post_attention_layernorm.weight"],
        "gate_up": interleave_gate_up(state["mlp.gate_proj.weight"], state["mlp.up_proj.weight"]),
        "down": state["mlp.down_proj.weight"],
    }


def to_llama(state: Mapping[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """The way back from `from_llama`; gradients go the same way. Raises KeyError or ArgumentError."""
    q, k, v = unpack_qkv(state["qkv"], heads, kv_heads)
    gate, up = split_gate_up(state["gate_up"])
    return {
        "input_layernorm.weight": state["attention_norm"],
        "self_attn.q_proj.weight": q,
        "self_attn.k_proj.weight": k,
        "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": state["out"],
        "post_attention_layernorm.weight": state["mlp_norm"],
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": state["down"],
    }
