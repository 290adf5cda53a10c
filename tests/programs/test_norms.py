"""RMSNorm, LayerNorm and QK-norm programs against norm-then-linear in f64, backward by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, SHAPES, TILES, by_tile, check, load, normal, operands, wide

EPS = 1e-5


def rms_norm(x: torch.Tensor, w: Any) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], wide(w), EPS)


def stored(x: torch.Tensor, dtype: Any) -> np.ndarray[Any, Any]:
    """What an earlier kernel would have left of an exact value."""
    return x.numpy().astype(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_residual_then_normed_linear(shape: tuple[int, int, int], tile: tuple[int, int], dtype: str) -> None:
    """The chain from one product to the next: residual_rms, rstd_from_squares, and each program on acc·rstd."""
    m, n, k = shape
    rng = np.random.default_rng(1)
    t = DTYPES[dtype]
    args = operands(rng, (m, k), (n, k), t, k) | {"c": normal(rng, m, n, dtype=t), "w": normal(rng, n)}
    d = F.linear(wide(args["a"]), wide(args["b"])) + wide(args["c"])
    h = d * wide(args["w"])
    sq = by_tile(d, tile[1], 1, lambda p: (p * p).sum(1))
    first = check("residual_rms", "residual_rms", args, {"d": d, "sq": sq, "h": h}, tile=tile)

    rstd = (d.pow(2).mean(1) + EPS).rsqrt()
    r = check(
        "residual_rms", "rstd_from_squares", {"sq": first.sq, "eps": EPS, "N": n}, {"rstd": rstd}, {"sq": sq}
    ).rstd
    b = normal(rng, 14, n, dtype=t, scale=n**-0.5)
    z = F.linear(rms_norm(d, args["w"]), wide(b))
    given, exact = {"a": first.h, "b": b, "rstd": r}, {"a": h, "rstd": rstd}
    check("rmsnorm_linear", "rmsnorm_linear", given, {"d": z}, exact)
    check("rmsnorm_swiglu", "rmsnorm_swiglu", given, {"z": z, "y": F.silu(z[:, ::2]) * z[:, 1::2]}, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_first_layer(tile: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(2)
    c, w = normal(rng, 21, 50, dtype=DTYPES[dtype], scale=3.0), normal(rng, 50)
    x = wide(c)
    sq = by_tile(x, tile[1], 1, lambda p: (p * p).sum(1))
    check("input_rms", "input_rms", {"c": c, "w": w}, {"sq": sq, "h": x * wide(w)}, tile=tile)
    statistics = layer_statistics(x, tile[1])
    check("input_layernorm", "input_layernorm", {"c": c, "w": w}, {**statistics, "h": x * wide(w)}, tile=tile)


def layer_statistics(x: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
    return {
        "count": by_tile(x, width, 1, lambda p: torch.full(p.shape[:1], float(p.shape[1]), dtype=torch.float64)),
        "mean": by_tile(x, width, 1, lambda p: p.mean(1)),
        "m2": by_tile(x, width, 1, lambda p: p.var(1, correction=0) * p.shape[1]),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layernorm(shape: tuple[int, int, int], tile: tuple[int, int], dtype: str) -> None:
    """residual_layernorm, mean_rstd and layernorm_linear against torch's layer_norm and linear, with γ, β, a bias."""
    m, n, k = shape
    rng = np.random.default_rng(3)
    t = DTYPES[dtype]
    gamma, beta = normal(rng, n), normal(rng, n)
    args = operands(rng, (m, k), (n, k), t, k) | {"c": normal(rng, m, n, dtype=t), "w": gamma}
    d = F.linear(wide(args["a"]), wide(args["b"])) + wide(args["c"])
    h = d * wide(gamma)
    statistics = layer_statistics(d, tile[1])
    first = check("residual_layernorm", "residual_layernorm", args, {"d": d, **statistics, "h": h}, tile=tile)

    mean, rstd = d.mean(1), (d.var(1, correction=0) + EPS).rsqrt()
    partials = {name: first[name] for name in statistics}
    combined = check(
        "residual_layernorm", "mean_rstd", {**partials, "eps": EPS}, {"mean": mean, "rstd": rstd}, statistics
    )
    b, bias = normal(rng, 13, n, dtype=t, scale=n**-0.5), normal(rng, 13)
    colsum, shifted = wide(b) @ wide(gamma), wide(bias) + wide(b) @ wide(beta)
    z = F.linear(F.layer_norm(d, (n,), wide(gamma), wide(beta), EPS), wide(b), wide(bias))
    exact = {"a": h, "mean": mean, "rstd": rstd, "colsum": colsum, "bias": shifted}
    given = {
        "a": first.h, "b": b, "mean": combined.mean, "rstd": combined.rstd,
        "colsum": stored(colsum, np.float32), "bias": stored(shifted, np.float32),
    }  # fmt: skip
    check("layernorm_linear", "layernorm_linear", given, {"d": z}, exact)
    del given["bias"], exact["bias"]
    check("layernorm_linear", "layernorm_linear", given, {"d": z - shifted}, exact)


def test_statistics_do_not_cancel_at_a_large_mean() -> None:
    """With mean/std = 1000, Σ x² − n·mean² in f32 would keep no digit of the variance; M2 does."""
    rng = np.random.default_rng(4)
    c = (1000 + rng.standard_normal((6, 300))).astype(np.float16)
    module = load("input_layernorm")
    out = module.input_layernorm.interpret(c=c, w=np.ones(300, np.float32), tile=(128, 64))
    rstd = module.mean_rstd(count=out.count, mean=out.mean, m2=out.m2, eps=0.0).rstd
    np.testing.assert_allclose(rstd, 1 / c.astype(np.float64).std(1), rtol=1e-5)


def test_layernorm_linear_cancels_as_documented() -> None:
    """bf16 at mean/std = 10: a few times 1e-3 where normalising comes first, above 1e-2 where it comes after."""
    rng = np.random.default_rng(5)
    t = DTYPES["bf16"]
    x, gamma = (10 + normal(rng, 64, 1024)).astype(t), 1 + normal(rng, 1024, scale=0.1)
    b = normal(rng, 64, 1024, dtype=t, scale=1 / 32)
    start, linear = load("input_layernorm"), load("layernorm_linear").layernorm_linear
    out = start.input_layernorm(c=x, w=gamma)
    statistics = start.mean_rstd(count=out.count, mean=out.mean, m2=out.m2, eps=0.0)
    colsum = stored(wide(b) @ wide(gamma), np.float32)
    after = linear(a=out.h, b=b, mean=statistics.mean, rstd=statistics.rstd, colsum=colsum).d
    normed = F.layer_norm(wide(x), (1024,), wide(gamma), None, 0.0)
    first = load("linear").linear(a=stored(normed, t), b=b).d
    exact = F.linear(normed, wide(b))
    errors = [float((wide(d) - exact).norm() / exact.norm()) for d in (after, first)]
    assert 1e-2 < errors[0] < 3e-2
    assert errors[1] < 4e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 4, 2, 1), (5, 6, 10, 7), (65, 8, 16, 40)])
def test_qk_norm(shape: tuple[int, int, int, int], dtype: str) -> None:
    m, heads, width, k = shape
    rng = np.random.default_rng(5)
    t = DTYPES[dtype]
    n = heads * width
    args: dict[str, Any] = operands(rng, (m, k), (n, k), t, k)
    z = F.linear(wide(args["a"]), wide(args["b"]))
    by_head = z.view(m, heads, width)
    sq = by_head.pow(2).sum(2)
    first = check("qk_norm", "qk_norm", {**args, "D": width}, {"z": z, "sq": sq})
    rstd = (by_head.pow(2).mean(2) + EPS).rsqrt()
    statistics = {"sq": first.sq, "D": width, "eps": EPS}
    r = check("qk_norm", "rstd_from_head_squares", statistics, {"rstd": rstd}, {"sq": sq}).rstd
    w = normal(rng, width)
    y = F.rms_norm(by_head, (width,), wide(w), EPS)
    given, exact = {"z": first.z, "rstd": r, "w": w}, {"z": z, "rstd": rstd}
    check("qk_norm", "qk_norm_map", given, {"y": y.reshape(m, n)}, exact)

    angle = rng.uniform(0, 6, (9, width // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    position = rng.integers(0, 9, m).astype(np.int32)
    turned = torch.view_as_complex(y.reshape(m, heads, width // 2, 2))
    turned = turned * torch.complex(wide(cos)[position], wide(sin)[position])[:, None, :]
    table = {"cos": cos, "sin": sin, "position": position}
    reference = torch.view_as_real(turned).reshape(m, n)
    check("qk_norm", "qk_norm_rope_map", {**given, **table}, {"y": reference}, exact)


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_backward(shape: tuple[int, int, int], tile: tuple[int, int], dtype: str, above: bool) -> None:
    """autograd through z = rms_norm(x)·w @ W.T with x also flowing on. The statistic comes from z and dz, as the kernel
    after this one leaves it."""
    m, n, k = shape
    rng = np.random.default_rng(6)
    t = DTYPES[dtype]
    c, w, weight = normal(rng, m, n, dtype=t), normal(rng, n), normal(rng, k, n, dtype=t, scale=n**-0.5)
    dz, o = normal(rng, m, k, dtype=t), normal(rng, m, n, dtype=t)
    x, gain = wide(c).requires_grad_(), wide(w).requires_grad_()
    normed = F.rms_norm(x, (n,), gain, EPS)
    z = F.linear(normed, wide(weight))
    dx, _ = torch.autograd.grad(z, (x, gain), wide(dz), retain_graph=True)
    dn = wide(dz) @ wide(weight)
    rstd = (wide(c).pow(2).mean(1) + EPS).rsqrt()
    dw = []
    for rows in torch.arange(m).split(tile[0]):  # the gain's gradient, a tile of rows at a time
        mask = torch.zeros(m, 1, dtype=torch.float64)
        mask[rows] = 1
        dw.append(torch.autograd.grad(normed, gain, dn * mask, retain_graph=True)[0])
    zdz = (z.detach() * wide(dz)).sum(1) / n
    given = {
        "a": dz, "b": weight, "c": c, "rstd": stored(rstd, np.float32), "w": w, "zdz": stored(zdz, np.float32),
    }  # fmt: skip
    if above:
        given["o"] = o
        dx = dx + wide(o)
    reference = {"o_new": dx, "c_out": normed.detach(), "dw": torch.stack(dw)}
    check("residual_rms_bwd", "residual_rms_bwd", given, reference, {"rstd": rstd, "zdz": zdz}, tile)


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_start_of_a_norm_backward(tile: tuple[int, int], dtype: str, above: bool) -> None:
    """autograd through h = c·w and rstd(c), with a gradient for each, and c also flowing on."""
    rng = np.random.default_rng(9)
    t = DTYPES[dtype]
    given = {
        "dh": normal(rng, 21, 50, dtype=t), "c": normal(rng, 21, 50, dtype=t), "w": normal(rng, 50),
        "drstd": normal(rng, 21, scale=7.0),
    }  # fmt: skip
    c = wide(given["c"]).requires_grad_()
    rstd = (c.pow(2).mean(1) + EPS).rsqrt()
    (dc,) = torch.autograd.grad([c * wide(given["w"]), rstd], c, [wide(given["dh"]), wide(given["drstd"])])
    given["rstd"] = stored(rstd.detach(), np.float32)
    if above:
        given["o"] = normal(rng, 21, 50, dtype=t)
        dc = dc + wide(given["o"])
    dw = by_tile(wide(given["dh"]) * c.detach(), tile[0], 0, lambda p: p.sum(0))
    exact = {"rstd": rstd.detach()}
    check("rms_bwd_map", "rms_bwd_map", given, {"o_new": dc, "dw": dw}, exact, tile, ["o_new", "dw"])


def test_the_statistic_from_partials() -> None:
    rng = np.random.default_rng(7)
    partials = normal(rng, 9, 5)
    expected = wide(partials).sum(1) / 4096
    check("swiglu_bwd", "zdz_from_partials", {"zdz": partials, "D": 4096}, {"zdz": expected})


@pytest.mark.parametrize("kernel", ["residual_rms", "residual_layernorm"])
def test_nan_stays_in_its_row(kernel: str) -> None:
    rng = np.random.default_rng(8)
    t = DTYPES["bf16"]
    args = operands(rng, (6, 8), (30, 8), t, 8) | {"c": normal(rng, 6, 30, dtype=t), "w": normal(rng, 30)}
    clean = load(kernel)[kernel].interpret(**args, tile=(2, 8))
    args["c"][3, 17] = np.nan
    got = load(kernel)[kernel].interpret(**args, tile=(2, 8))
    others = np.arange(6) != 3
    for name, x in got.items():
        np.testing.assert_array_equal(x[others], clean[name][others])
    assert np.isnan(got.d[3, 17])
    assert np.isnan(got.h[3, 17])
    statistic = "sq" if kernel == "residual_rms" else "m2"
    np.testing.assert_array_equal(np.isnan(got[statistic][3]), np.arange(4) == 2)
