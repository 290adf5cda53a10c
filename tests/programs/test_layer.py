"""A transformer layer without its attention, forward and backward, through every program that takes part.

The oracle is the layer's usual definition with torch.autograd in f64. Each program gets what the ones before it stored,
so its bound counts how far its own inputs already are from the exact ones, and its own arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, TILES, by_tile, check, normal, wide
from test_rope import rotate, table

TOKENS, WIDTH, HIDDEN, QKV, EPS = 37, 48, 40, 80, 1e-5


def rms_scale(x: torch.Tensor) -> torch.Tensor:
    return (x.detach().pow(2).mean(1) + EPS).rsqrt()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_layer(tile: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(1)
    t = DTYPES[dtype]
    tall, across = tile
    stored: dict[str, Any] = {
        "y0": normal(rng, TOKENS, WIDTH, dtype=t),
        "x0": normal(rng, TOKENS, WIDTH, dtype=t),
        "w0": normal(rng, WIDTH, WIDTH, dtype=t, scale=WIDTH**-0.5),
        "w1": normal(rng, 2 * HIDDEN, WIDTH, dtype=t, scale=WIDTH**-0.5),
        "w2": normal(rng, WIDTH, HIDDEN, dtype=t, scale=HIDDEN**-0.5),
        "w3": normal(rng, QKV, WIDTH, dtype=t, scale=WIDTH**-0.5),
        "g0": normal(rng, WIDTH),
        "g1": normal(rng, WIDTH),
    }
    turn = table(rng, TOKENS, QKV // 2)
    dqkv, above = normal(rng, TOKENS, QKV, dtype=t), normal(rng, TOKENS, WIDTH, dtype=t)

    e = {name: wide(x).requires_grad_() for name, x in stored.items()}
    x1 = e["x0"] + F.linear(e["y0"], e["w0"])
    n1 = F.rms_norm(x1, (WIDTH,), e["g0"], EPS)
    z1 = F.linear(n1, e["w1"])
    y1 = F.silu(z1[:, ::2]) * z1[:, 1::2]
    x2 = x1 + F.linear(y1, e["w2"])
    n2 = F.rms_norm(x2, (WIDTH,), e["g1"], EPS)
    z2 = F.linear(n2, e["w3"])
    qkv = rotate(z2, wide(turn["cos"]), wide(turn["sin"]))
    inner = [x1, z1, y1, x2, z2, n1, n2]
    leaves = ["y0", "w0", "w1", "w2", "w3"]
    grads = torch.autograd.grad([qkv, x2], [*inner, *(e[n] for n in leaves)], [wide(dqkv), wide(above)])
    dx1, dz1, _, dx2, dz2, dn1, dn2 = grads[: len(inner)]
    leaf = dict(zip(leaves, grads[len(inner) :], strict=True))
    x1, z1, y1, x2, z2, n1, n2, qkv = (v.detach() for v in (x1, z1, y1, x2, z2, n1, n2, qkv))
    g0, g1 = e["g0"].detach(), e["g1"].detach()
    r1, r2 = rms_scale(x1), rms_scale(x2)

    def sums(x: torch.Tensor, width: int = across) -> torch.Tensor:
        return by_tile(x, width, 1, lambda p: p.sum(1))

    def rstd(sq: Any, exact: torch.Tensor, scale: torch.Tensor) -> Any:
        given = {"sq": sq, "N": WIDTH, "eps": EPS}
        return check("reduces", "rstd_from_squares", given, {"rstd": scale}, {"sq": exact}).rstd

    # forward
    args = {"a": stored["y0"], "b": stored["w0"], "c": stored["x0"], "w": stored["g0"]}
    mid = check("residual_rms", "residual_rms", args, {"d": x1, "sq": sums(x1**2), "h": x1 * g0}, tile=tile)
    rstd1 = rstd(mid.sq, sums(x1**2), r1)
    gate = check("rmsnorm_swiglu", "rmsnorm_swiglu", {"a": mid.h, "b": stored["w1"], "rstd": rstd1},
                 {"z": z1, "y": y1}, {"a": x1 * g0, "rstd": r1}, tile)  # fmt: skip
    args = {"a": gate.y, "b": stored["w2"], "c": mid.d, "w": stored["g1"]}
    reference = {"d": x2, "sq": sums(x2**2), "h": x2 * g1}
    last = check("residual_rms", "residual_rms", args, reference, {"a": y1, "c": x1}, tile)
    rstd2 = rstd(last.sq, sums(x2**2), r2)
    out = check("rmsnorm_rope", "rmsnorm_rope", {"a": last.h, "b": stored["w3"], "rstd": rstd2, **turn},
                {"y": qkv}, {"a": x2 * g1, "rstd": r2}, tile)  # fmt: skip

    def norm_backward(dz: Any, exact_dz: torch.Tensor, w: str, g: str, x: Any, exact_x: torch.Tensor, r: Any,
                      exact_r: torch.Tensor, partials: Any, exact_partials: torch.Tensor, o: Any,
                      exact_o: torch.Tensor, reference: dict[str, Any]) -> Any:  # fmt: skip
        zdz = check("reduces", "zdz_from_partials", {"zdz": partials, "D": WIDTH},
                    {"zdz": exact_partials.sum(1) / WIDTH}, {"zdz": exact_partials}).zdz  # fmt: skip
        given = {"a": dz, "b": stored[w], "c": x, "rstd": r, "w": stored[g], "zdz": zdz, "o": o}
        exact = {"a": exact_dz, "c": exact_x, "rstd": exact_r, "zdz": exact_partials.sum(1) / WIDTH, "o": exact_o}
        return check("residual_rms_bwd", "residual_rms_bwd", given, reference, exact, tile)

    def weight_gradient(name: str, dz: Any, exact_dz: torch.Tensor, x: Any, exact_x: torch.Tensor) -> None:
        exact = {"a": exact_dz, "b": exact_x}
        check("linear_dw", "linear_dw", {"a": dz, "b": x}, {"dw": leaf[name]}, exact)

    def gain(dn: torch.Tensor, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return by_tile(dn * x * r[:, None], tall, 0, lambda p: p.sum(0))

    # backward
    part = sums(qkv * wide(dqkv))
    turned = check("rope_bwd", "rope_bwd_map", {"dy": dqkv, "y": out.y, **turn},
                   {"dz": dz2, "zdz": part}, {"y": qkv}, tile)  # fmt: skip
    reference = {"o_new": dx2, "c_out": n2, "dw": gain(dn2, x2, r2)}
    b2 = norm_backward(turned.dz, dz2, "w3", "g1", last.d, x2, rstd2, r2, turned.zdz, part,
                       above, wide(above), reference)  # fmt: skip
    weight_gradient("w3", turned.dz, dz2, b2.c_out, n2)
    part = sums(z1 * dz1, 2 * across)
    b1 = check("swiglu_bwd", "swiglu_bwd", {"a": b2.o_new, "b": stored["w2"], "z": gate.z},
               {"y": y1, "dz": dz1, "zdz": part}, {"a": dx2, "z": z1}, tile)  # fmt: skip
    weight_gradient("w2", b2.o_new, dx2, b1.y, y1)
    reference = {"o_new": dx1, "c_out": n1, "dw": gain(dn1, x1, r1)}
    b0 = norm_backward(b1.dz, dz1, "w1", "g0", mid.d, x1, rstd1, r1, b1.zdz, part, b2.o_new, dx2, reference)
    weight_gradient("w1", b1.dz, dz1, b0.c_out, n1)
    check("linear_dx", "linear_dx", {"a": b0.o_new, "b": stored["w0"]}, {"dx": leaf["y0"]}, {"a": dx1})
    weight_gradient("w0", b0.o_new, dx1, stored["y0"], wide(stored["y0"]))
    kept = wide(b0.o_new)
    assert (kept - dx1).norm() < 0.02 * dx1.norm()  # the whole chain, and not only each step
