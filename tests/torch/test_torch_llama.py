"""A whole Llama layer against one in plain PyTorch with standard weights, and the way between their weights."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import hold, normal, relative
from torch import Tensor
from torch.func import functional_call

import coda_lang.torch as ct


def example(name: str) -> Any:
    """A module of examples/."""
    folder = Path(__file__).parents[2] / "examples"
    if name not in sys.modules:
        sys.path.insert(0, str(folder))
        try:
            spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(folder))
    return sys.modules[name]


plain_llama = example("plain_llama")
LENGTH = 37


def setup(seed: int, heads: int = 4, kv_heads: int = 2, layers: int = 1) -> tuple[Any, list[Any], dict[str, Tensor]]:
    """A configuration, plain layers with random norms, and their state with the input, in bf16, by argument name."""
    c = plain_llama.Config(hidden=64, intermediate=160, heads=heads, kv_heads=kv_heads, layers=layers)
    torch.manual_seed(seed)
    plain, tensors = [plain_llama.Layer(c) for _ in range(layers)], {}
    for i, layer in enumerate(plain):
        for name, p in layer.named_parameters():
            torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.2 if p.dim() == 1 else 0.1)
            tensors[f"l{i}__" + name.replace(".", "__")] = p.detach().bfloat16()
    return c, plain, tensors | {"x": normal(2, LENGTH, 64, seed=seed)}


def states(weights: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    count = 1 + max(int(name.partition("__")[0][1:]) for name in weights)
    return [
        {n.partition("__")[2].replace("__", "."): w for n, w in weights.items() if n.startswith(f"l{i}__")}
        for i in range(count)
    ]


def run_plain(c: Any, layers: list[Any], x: Tensor, **weights: Tensor) -> Tensor:
    cos, sin = plain_llama.rotary(c, LENGTH, x.dtype)
    for layer, state in zip(layers, states(weights), strict=True):
        x = functional_call(layer, state, (x, cos, sin))
    return x


class Blocks(torch.nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        sizes = (c.hidden, c.intermediate, c.heads, c.kv_heads)
        self.blocks = torch.nn.ModuleList(ct.LlamaBlock(*sizes, eps=c.eps) for _ in range(c.layers))

    def forward(self, x: Tensor, fused: bool) -> Tensor:
        cos, sin = ct.rope_tables(40, self.blocks[0].head_dim)
        if fused:
            return ct.run_blocks(self.blocks, x, cos, sin)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def run_ours(c: Any, x: Tensor, fused: bool = True, **weights: Tensor) -> Tensor:
    model = Blocks(c)
    state = {
        f"blocks.{i}.{name}": w
        for i, layer in enumerate(states(weights))
        for name, w in ct.from_llama(layer, c.heads, c.kv_heads).items()
    }
    return functional_call(model, state, (x, fused))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_a_layer(seed: int, heads: int, kv_heads: int) -> None:
    """Its output and all its gradients are nearer to f64 than those of PyTorch's bf16, taken over all weights."""
    c, layers, tensors = setup(seed, heads, kv_heads)
    ratios = hold(
        lambda **t: run_ours(c, **t), lambda **t: run_plain(c, layers, **t), tensors, vectors=1.1
    )  # fmt: skip
    assert sum(ratios.values()) / len(ratios) <= 0.95


@pytest.mark.parametrize("fused", [True, False])
def test_three_layers(fused: bool) -> None:
    """In a row as spans, and one by one."""
    c, layers, tensors = setup(3, layers=3)
    ratios = hold(
        lambda **t: run_ours(c, fused=fused, **t), lambda **t: run_plain(c, layers, **t), tensors, vectors=1.1
    )  # fmt: skip
    assert sum(ratios.values()) / len(ratios) <= 0.95


def test_bf16_state_goes_in_and_comes_back() -> None:
    c, layers, _ = setup(0)
    state = layers[0].state_dict()
    block = ct.LlamaBlock(64, 160, c.heads, c.kv_heads)
    block.load_state_dict(ct.from_llama(state, c.heads, c.kv_heads))
    back = ct.to_llama(block.state_dict(), c.heads, c.kv_heads)
    assert back.keys() == state.keys()
    for name, weight in state.items():
        assert torch.equal(back[name], weight), name


def test_weight_orders() -> None:
    gate, up = torch.arange(3.0), torch.arange(3.0) + 10
    both = ct.interleave_gate_up(gate, up)
    assert both.tolist() == [0, 10, 1, 11, 2, 12]
    assert [t.tolist() for t in ct.split_gate_up(both)] == [gate.tolist(), up.tolist()]
    halves = torch.arange(12).reshape(12, 1)
    pairs = ct.rotary_to_pairs(halves, 2)
    assert pairs.flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert torch.equal(ct.pairs_to_rotary(pairs, 2), halves)


def test_positions_of_packed_sequences() -> None:
    """Positions that start again give the rotation of two sequences."""
    block = ct.LlamaBlock(32, 48, 2, dtype=torch.bfloat16)
    cos, sin = ct.rope_tables(16, 16)
    x = normal(1, 12, 32)
    position = torch.cat([torch.arange(7), torch.arange(5)])[None]
    turn = partial(ct.rms_linear_rope, rotated=block.rotated, head_dim=16)
    qkv = turn(x, block.attention_norm, block.qkv, cos, sin, position)
    for part in (slice(0, 7), slice(7, 12)):
        own = torch.arange(part.stop - part.start)[None]
        alone = turn(x[:, part], block.attention_norm, block.qkv, cos, sin, own)
        assert torch.equal(qkv[:, part], alone)


def test_swiglu_module() -> None:
    gate, up = torch.nn.Linear(32, 48, bias=False), torch.nn.Linear(32, 48, bias=False)
    down = torch.nn.Linear(48, 32, bias=False)
    module = ct.SwiGLU.from_linears(gate, up, down).bfloat16()
    x = normal(5, 32)
    exact = down(torch.nn.functional.silu(gate(x.float())) * up(x.float()))
    assert relative(module(x), exact.detach().double()) < 1e-2


def test_cross_entropy_module() -> None:
    head = ct.LinearCrossEntropy(32, 50, dtype=torch.bfloat16, label_smoothing=0.1, reduction="sum")
    x, target = normal(5, 32), torch.arange(5)
    exact = torch.nn.functional.cross_entropy(
        x.double() @ head.weight.double().T, target, label_smoothing=0.1, reduction="sum"
    )  # fmt: skip
    torch.testing.assert_close(head(x, target).double(), exact, rtol=1e-5, atol=0)
    assert "label_smoothing=0.1" in repr(head)


def test_wrong_blocks() -> None:
    from coda_lang import ArgumentError

    for heads, kv_heads in ((4, 3), (5, 5), (4, 0)):
        with pytest.raises(ArgumentError, match=f"got {heads} heads and {kv_heads} kv_heads"):
            ct.LlamaBlock(64, 96, heads, kv_heads)
    with pytest.raises(ArgumentError, match="even width, got 1"):
        ct.LlamaBlock(64, 96, 64)
    two = [ct.LlamaBlock(32, 48, 2, eps=eps, dtype=torch.bfloat16) for eps in (1e-5, 1e-6)]
    with pytest.raises(ArgumentError, match="share one eps"):
        ct.run_blocks(two, normal(1, 3, 32), *ct.rope_tables(4, 16))
    with pytest.raises(ArgumentError, match="down"):
        ct.llama_mlp(normal(3, 32), normal(32, 32), normal(3, 32), torch.ones(32), normal(96, 32), normal(32, 47))
