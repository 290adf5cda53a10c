"""PyTorch: the fused operations with their gradients, modules made of them, and the order of their weights.

CPU tensors run on the interpreter, CUDA tensors on the backend. See docs/torch.md.
"""

from coda_lang.torch.act import linear_act
from coda_lang.torch.cross_entropy import linear_cross_entropy
from coda_lang.torch.llama import llama_mlp, llama_span, rms_linear_rope
from coda_lang.torch.modules import LinearCrossEntropy, LlamaBlock, SwiGLU, run_blocks
from coda_lang.torch.rehearsal import precompile
from coda_lang.torch.residual_rms import input_rms, residual_rms_linear
from coda_lang.torch.rope import linear_rope, rope_tables
from coda_lang.torch.swiglu import linear_swiglu, swiglu_mlp
from coda_lang.torch.tuning import tune
from coda_lang.torch.weights import (
    from_llama,
    interleave_gate_up,
    pack_qkv,
    pairs_to_rotary,
    rotary_to_pairs,
    split_gate_up,
    to_llama,
    unpack_qkv,
)

__all__ = [
    "LinearCrossEntropy",
    "LlamaBlock",
    "SwiGLU",
    "from_llama",
    "input_rms",
    "interleave_gate_up",
    "linear_act",
    "linear_cross_entropy",
    "linear_rope",
    "linear_swiglu",
    "llama_mlp",
    "llama_span",
    "pack_qkv",
    "pairs_to_rotary",
    "precompile",
    "residual_rms_linear",
    "rms_linear_rope",
    "rope_tables",
    "rotary_to_pairs",
    "run_blocks",
    "split_gate_up",
    "swiglu_mlp",
    "to_llama",
    "tune",
    "unpack_qkv",
]
