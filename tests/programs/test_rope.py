"""Rotary embeddings as multiplication by e^(iθ), and their gradients by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, SHAPES, TILES, by_tile, check, load, normal, operands, wide


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (2j, 2j+1) as complex numbers, turned."""
    pairs = torch.view_as_complex(x.unflatten(-1, (x.shape[-1] // 2, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos, sin)).reshape(x.shape)


def table(rng: np.random.Generator, *shape: int) -> dict[str, Any]:
    angle = rng.uniform(-50, 50, shape)
    return {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}


def rotate_heads(x: torch.Tensor, args: dict[str, Any], rotated: int) -> torch.Tensor:
    """Each head of the first `rotated` columns turned by its row's position."""
    at = torch.from_numpy(args["position"].astype(np.int64))
    width = 2 * args["cos"].shape[1]
    cos, sin = wide(args["cos"])[at][:, None, :], wide(args["sin"])[at][:, None, :]
    heads = x[:, :rotated].reshape(len(x), rotated // width, width)
    return torch.cat([rotate(heads, cos, sin).reshape(len(x), rotated), x[:, rotated:]], 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rope(shape: tuple[int, int, int], tile: tuple[int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(1)
    t = DTYPES[dtype]
    turn = table(rng, m, n // 2)
    cos, sin = wide(turn["cos"]), wide(turn["sin"])
    args = operands(rng, (m, k), (n, k), t, k)
    z = F.linear(wide(args["a"]), wide(args["b"]))
    check("rope", "rope", args | turn, {"y": rotate(z, cos, sin)})

    rstd = rng.uniform(0.5, 2, m).astype(np.float32)
    z = z * wide(rstd)[:, None]
    reference = {"z": z, "y": rotate(z, cos, sin)}
    check("rmsnorm_rope", "rmsnorm_rope", args | turn | {"rstd": rstd}, reference, outputs=["z", "y"])

    # Backward: y is what the forward pass stored of the rotated z, so Σ y·dy is Σ z·dz of the exact z.
    zs = z.requires_grad_()
    ys = rotate(zs, cos, sin)
    kept = ys.detach().numpy().astype(np.float32).astype(t)
    grad = operands(rng, (m, k), (k, n), t, k)
    dy = wide(grad["a"]) @ wide(grad["b"])
    (dz,) = torch.autograd.grad(ys, zs, dy, retain_graph=True)
    zdz = by_tile(z.detach() * dz, tile[1], 1, lambda p: p.sum(1))
    zdz_y = by_tile(ys.detach() * dy, tile[1], 1, lambda p: p.sum(1))
    torch.testing.assert_close(zdz, zdz_y, rtol=0, atol=1e-6 * n)  # a rotation keeps it, up to the table's rounding
    exact_y = {"y": ys.detach()}
    check("rope_bwd", "rope_bwd", grad | turn | {"y": kept}, {"dz": dz, "zdz": zdz_y}, exact_y, tile)

    given = normal(rng, m, n, dtype=t)
    (dz,) = torch.autograd.grad(ys, zs, wide(given))
    zdz = by_tile(ys.detach() * wide(given), tile[1], 1, lambda p: p.sum(1))
    check("rope_bwd", "rope_bwd_map", turn | {"dy": given, "y": kept}, {"dz": dz, "zdz": zdz}, exact_y, tile)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 2, 1), (5, 6, 3), (33, 16, 10)])
def test_rope_by_position(heads: tuple[int, int, int], dtype: str, index: Any) -> None:
    """Rows in any order, positions repeated; the last head of three (or the only one) is left alone."""
    m, width, count = heads
    rng = np.random.default_rng(2)
    t = DTYPES[dtype]
    n, k = width * count, 24
    args = operands(rng, (m, k), (n, k), t, k)
    turn: dict[str, Any] = table(rng, 11, width // 2) | {"position": rng.integers(0, 11, m).astype(index)}
    z = F.linear(wide(args["a"]), wide(args["b"]))
    rstd = rng.uniform(0.5, 2, m).astype(np.float32)
    for rotated in (None, width * (count - 1)):
        end = n if rotated is None else rotated
        given = turn if rotated is None else turn | {"rotated": rotated}
        check("rope", "rope_position", args | given, {"y": rotate_heads(z, turn, end)})
        s = z * wide(rstd)[:, None]
        reference = {"y": rotate_heads(s, turn, end)}
        check("rmsnorm_rope", "rmsnorm_rope_position", args | given | {"rstd": rstd}, reference)

        zs = s.clone().requires_grad_()
        ys = rotate_heads(zs, turn, end)
        dy, kept = normal(rng, m, n, dtype=t), normal(rng, m, n, dtype=t)
        (dz,) = torch.autograd.grad(ys, zs, wide(dy))
        zdz = by_tile(wide(kept) * wide(dy), 256, 1, lambda p: p.sum(1))
        given = given | {"dy": dy, "y": kept}
        check("rope_bwd", "rope_position_bwd_map", given, {"dz": dz, "zdz": zdz})
        reference = {"dz": dz * wide(rstd)[:, None], "zdz": zdz}  # behind an RMSNorm: of the product itself
        check("rope_bwd", "rope_position_bwd_map", given | {"rstd": rstd}, reference)


def test_a_position_outside_the_table_is_nan() -> None:
    rng = np.random.default_rng(3)
    args = operands(rng, (3, 8), (4, 8), DTYPES["bf16"], 8)
    position = np.array([0, 5, -1], np.int32)
    y = load("rope").rope_position(**args, **table(rng, 5, 2), position=position).y
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)).all(1), [False, True, True])
    assert not np.isnan(y[0].astype(np.float32)).any()
