"""llama_layer.coda against the layer's usual definition in plain PyTorch, gradients by torch.autograd in f64.

A step's own bound is tested in tests/programs; here the whole chain is held to what PyTorch itself loses in bf16: the
blocks may be no further from f64 than the same layer in PyTorch's bf16.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import coda_lang as coda

M, D, FF, HEADS, GROUPS, C, V, P, EPS = 96, 64, 80, 4, 2, 16, 136, 50, 1e-5
A, Q, ROTATED = HEADS * C, (HEADS + 2 * GROUPS) * C, (HEADS + GROUPS) * C
layer = coda.load("programs/llama_layer.coda")


def given(seed: int = 0) -> dict[str, Any]:
    """Every input of the blocks, bf16 and f32 as they ask."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0, dtype: Any = ml_dtypes.bfloat16) -> Any:
        return (rng.standard_normal(shape) * scale).astype(dtype)

    angle = rng.uniform(0, 2 * np.pi, (P, C // 2))
    target = rng.integers(0, V, M)
    target[::7] = -100
    return {
        "y0": normal(M, A), "x0": normal(M, D), "dqkv": normal(M, Q), "dx2": normal(M, D),
        "w0": normal(D, A, scale=A**-0.5), "w1": normal(2 * FF, D, scale=D**-0.5),
        "w2": normal(D, FF, scale=FF**-0.5), "w3": normal(Q, D, scale=D**-0.5), "head": normal(V, D, scale=D**-0.5),
        "g0": normal(D, dtype=np.float32), "g1": normal(D, dtype=np.float32),
        "cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32),
        "position": rng.integers(0, P, M), "rotated": ROTATED, "target": target,
    }  # fmt: skip


def tensors(x: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The floats as leaves of a graph, in f64 or as the model would hold them."""
    names = ("y0", "x0", "w0", "w1", "w2", "w3", "head", "g0", "g1", "cos", "sin", "dqkv", "dx2")
    return {n: torch.from_numpy(x[n].astype(np.float64)).to(dtype).requires_grad_() for n in names}


def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], gain, EPS)


def turned(z: torch.Tensor, t: dict[str, torch.Tensor], position: Any) -> torch.Tensor:
    """Rotary embedding of the pairs (2j, 2j + 1) of every head but those of the values."""
    where = torch.from_numpy(position)
    cos, sin = (t[n].detach()[where][:, None, :] for n in ("cos", "sin"))
    x = z[:, :ROTATED].reshape(M, -1, C // 2, 2)
    a, b = x[..., 0], x[..., 1]
    both = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(M, ROTATED)
    return torch.cat([both, z[:, ROTATED:]], 1)


def mlp(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """x2, and what the blocks keep on the way."""
    x1 = t["x0"] + F.linear(t["y0"], t["w0"])
    z1 = F.linear(norm(x1, t["g0"]), t["w1"])
    x2 = x1 + F.linear(F.silu(z1[:, ::2]) * z1[:, 1::2], t["w2"])
    r1, r2 = (x.pow(2).mean(1).add(EPS).rsqrt() for x in (x1, x2))
    return {"x1": x1, "r1": r1, "z1": z1, "x2": x2, "r2": r2}


def spans(x: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Outputs and gradients of a whole layer."""
    t = tensors(x, dtype)
    kept = mlp(t)
    x2 = kept["x2"]
    qkv = turned(F.linear(norm(x2, t["g1"]), t["w3"]), t, x["position"])
    leaves = ("y0", "x0", "w0", "g0", "w1", "w2", "g1", "w3")
    grads = torch.autograd.grad([qkv, x2], [t[n] for n in leaves], [t["dqkv"].detach(), t["dx2"].detach()])
    return {**kept, "qkv": qkv, **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}


def ends(x: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The last MLP, the head and the loss."""
    t = tensors(x, dtype)
    kept = mlp(t)
    logits = F.linear(norm(kept["x2"], t["g1"]), t["head"])
    loss = F.cross_entropy(logits, torch.from_numpy(x["target"]))
    leaves = ("y0", "x0", "w0", "g0", "w1", "w2", "g1", "head")
    grads = torch.autograd.grad(loss, [t[n] for n in leaves])
    return {
        "loss": loss,
        "lse": logits.logsumexp(1),
        **kept,
        **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)},
    }


def distance(x: Any, exact: torch.Tensor) -> float:
    have = torch.from_numpy(np.asarray(x).astype(np.float64)) if not isinstance(x, torch.Tensor) else x.double()
    return float(((have - exact).norm() / exact.norm()).detach())


def hold(got: dict[str, Any], exact: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    for name, value in exact.items():
        mine, theirs = distance(got[name], value), distance(plain[name].detach(), value)
        assert mine <= theirs, f"{name}: {mine:.2e} from f64, PyTorch's bf16 {theirs:.2e}"


def pick(x: dict[str, Any], block: Any) -> dict[str, Any]:
    return {p.name: x[p.name] for p in block.ir.params if p.name in x}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("tile", [(128, 256), (16, 32)])
def test_a_layer_and_its_gradients(tile: tuple[int, int], seed: int) -> None:
    x = given(seed)
    forward = layer.llama_layer
    kept = forward.interpret(**pick(x, forward), outputs=[o.name for o in forward.ir.outputs], tile=tile)
    x |= dict(kept.items())
    backward = layer.llama_layer_bwd
    grads = backward.interpret(**pick(x, backward), tile=tile)
    hold(dict(kept.items()) | dict(grads.items()), spans(x, torch.float64), spans(x, torch.bfloat16))


def test_the_first_layer() -> None:
    x = given(1)
    x["x2"] = x["x0"]
    first = layer.llama_first
    out = first(**pick(x, first), outputs=["qkv", "r2"])
    x |= dict(out.items())
    grads = layer.llama_first_bwd(**pick(x, layer.llama_first_bwd))

    def plain(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        t = tensors(x, dtype)
        qkv = turned(F.linear(norm(t["x0"], t["g1"]), t["w3"]), t, x["position"])
        leaves = ("x0", "g1", "w3")
        grads = torch.autograd.grad([qkv, t["x0"]], [t[n] for n in leaves], [t["dqkv"].detach(), t["dx2"].detach()])
        return {"qkv": qkv, **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}

    hold(dict(out.items()) | dict(grads.items()), plain(torch.float64), plain(torch.bfloat16))


@pytest.mark.parametrize("exact", [False, True])
def test_the_last_layer_and_its_loss(exact: bool) -> None:
    x = given(2)
    last = layer.llama_last
    kept = last.interpret(**pick(x, last), outputs=[o.name for o in last.ir.outputs], exact=exact)
    x |= dict(kept.items()) | {"dhead": np.zeros((V, D), np.float32)}
    grads = layer.llama_last_bwd.interpret(**pick(x, layer.llama_last_bwd), exact=exact)
    assert grads.dhead is x["dhead"]
    hold(dict(kept.items()) | dict(grads.items()), ends(x, torch.float64), ends(x, torch.bfloat16))
