"""Gated linear units and their gradients against torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, SHAPES, TILES, by_tile, check, load, normal, operands, wide


def oai(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The gpt-oss reference code's activation."""
    g, u = g.clamp(min=None, max=7.0), u.clamp(min=-7.0, max=7.0)
    return g * torch.sigmoid(1.702 * g) * (u + 1)


GATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "swiglu": lambda g, u: F.silu(g) * u,
    "geglu": lambda g, u: F.gelu(g) * u,
    "geglu_tanh": lambda g, u: F.gelu(g, approximate="tanh") * u,
    "reglu": lambda g, u: F.relu(g) * u,
    "glu": lambda g, u: F.glu(torch.cat([u, g], 1), 1),  # torch gates with the second half
    "swiglu_oai": oai,
}
BACKWARD = {"geglu_tanh": "geglu_bwd"}  # the file, where it is not named after the kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", GATES)
def test_forward(gate: str, shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(1)
    t = DTYPES[dtype]
    args = operands(rng, (m, k), (n, k), t, k)
    if gate == "swiglu_oai":
        args["b"] = normal(rng, n, k, dtype=t, scale=5 * k**-0.5)  # reaches the clamps
    for bias in (None, normal(rng, n)):
        z = F.linear(wide(args["a"]), wide(args["b"]), None if bias is None else wide(bias))
        given = args if bias is None else args | {"bias": bias}
        check("swiglu", gate, given, {"z": z, "y": GATES[gate](z[:, ::2], z[:, 1::2])})


def test_inference_asks_for_y_alone() -> None:
    args = operands(np.random.default_rng(0), (5, 8), (6, 8), DTYPES["bf16"], 8)
    alone = load("swiglu").swiglu(**args, outputs=["y"])
    assert list(alone.keys()) == ["y"]
    np.testing.assert_array_equal(alone.y, load("swiglu").swiglu(**args).y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", GATES)
def test_gradient(gate: str, shape: tuple[int, int, int], tile: tuple[int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(2)
    t = DTYPES[dtype]
    args = operands(rng, (m, k), (k, n), t, k)
    args["z"] = normal(rng, m, 2 * n, dtype=t, scale=5.0 if gate == "swiglu_oai" else 1.5)
    args["z"].flat[:2] = 0, 7  # relu's corner; torch.clamp lets the gradient through at its ends
    z = wide(args["z"]).requires_grad_()
    y = GATES[gate](z[:, ::2], z[:, 1::2])
    (dz,) = torch.autograd.grad(y, z, wide(args["a"]) @ wide(args["b"]))
    # a tile of the accumulator has tile[1] columns of y, and so twice as many of z
    reference = {
        "y": y.detach(),
        "dz": dz,
        "zdz": by_tile(z.detach() * dz, 2 * tile[1], 1, lambda p: p.sum(1)),
        "dbias": by_tile(dz, tile[0], 0, lambda p: p.sum(0)),
    }
    check(BACKWARD.get(gate, f"{gate}_bwd"), f"{gate}_bwd", args, reference, tile=tile, outputs=list(reference))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_gradient_without_a_product(tile: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(4)
    args = {"dy": normal(rng, 21, 30, dtype=DTYPES[dtype]), "z": normal(rng, 21, 60, dtype=DTYPES[dtype])}
    z = wide(args["z"]).requires_grad_()
    (dz,) = torch.autograd.grad(F.silu(z[:, ::2]) * z[:, 1::2], z, wide(args["dy"]))
    reference = {
        "dz": dz,
        "zdz": by_tile(z.detach() * dz, 2 * tile[1], 1, lambda p: p.sum(1)),
        "dbias": by_tile(dz, tile[0], 0, lambda p: p.sum(0)),
    }
    check("swiglu_bwd_map", "swiglu_bwd_map", args, reference, tile=tile, outputs=list(reference))
    rstd = rng.uniform(0.5, 3, 21).astype(np.float32)  # behind an RMSNorm: dz of the product itself
    reference["dz"] = dz * wide(rstd)[:, None]
    check("swiglu_bwd_map", "swiglu_bwd_map", args | {"rstd": rstd}, reference, tile=tile, outputs=list(reference))


def test_parameters_of_the_oai_form() -> None:
    rng = np.random.default_rng(3)
    args = operands(rng, (4, 8), (6, 8), DTYPES["bf16"], 8)
    z = F.linear(wide(args["a"]), wide(args["b"]))
    g, u = z[:, ::2].clamp(max=0.5), z[:, 1::2].clamp(-0.5, 0.5)
    y = g * torch.sigmoid(0.9 * g) * (u + 1)
    check("swiglu", "swiglu_oai", args | {"alpha": 0.9, "limit": 0.5}, {"z": z, "y": y})
