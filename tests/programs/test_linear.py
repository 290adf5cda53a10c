"""Linear layers, their activations and gradients against torch's own modules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, F16, SHAPES, TILES, by_tile, check, load, normal, operands, wide

from coda_lang.interp.bounds import Analysis

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu_sq": lambda x: F.relu(x) ** 2,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(1)
    t = DTYPES[dtype]
    args = operands(rng, (m, k), (n, k), t, k)
    product = F.linear(wide(args["a"]), wide(args["b"]))
    check("linear", "linear", args, {"d": product})
    c, bias = normal(rng, m, n, dtype=t), normal(rng, n)
    full = {**args, "c": c, "bias": bias, "alpha": 0.7, "beta": -1.3}
    check("linear", "linear", full, {"d": 0.7 * product - 1.3 * wide(c) + wide(bias)})


def test_linear_does_not_read_what_is_not_passed() -> None:
    args = operands(np.random.default_rng(0), (3, 5), (4, 5), F16, 5)
    without = load("linear").linear(**args, beta=float("nan"), c=None, bias=None)
    assert np.isnan(without.d).all()  # beta is a number and is multiplied: 0·NaN
    zeros = load("linear").linear(**args, bias=np.zeros(4, np.float32))
    np.testing.assert_array_equal(load("linear").linear(**args).d, zeros.d)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation(act: str, shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(2)
    args = operands(rng, (m, k), (n, k), DTYPES[dtype], k) | {"bias": normal(rng, n)}
    z = F.linear(wide(args["a"]), wide(args["b"]), wide(args["bias"]))
    check("linear_act", f"linear_{act}", args, {"z": z, "y": ACTIVATIONS[act](z)}, outputs=["z", "y"])
    del args["bias"]
    check("linear_act", f"linear_{act}", args, {"y": ACTIVATIONS[act](F.linear(wide(args["a"]), wide(args["b"])))})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation_gradient(act: str, shape: tuple[int, int, int], tile: tuple[int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(3)
    t = DTYPES[dtype]
    args = operands(rng, (m, k), (k, n), t, k) | {"z": normal(rng, m, n, dtype=t, scale=2.0)}
    args["z"].flat[0] = 0
    z = wide(args["z"]).requires_grad_()
    y = ACTIVATIONS[act](z)
    dy = wide(args["a"]) @ wide(args["b"])
    (dz,) = torch.autograd.grad(y, z, dy)
    dbias = by_tile(dz, tile[0], 0, lambda p: p.sum(0))
    zdz = by_tile(z.detach() * dz, tile[1], 1, lambda p: p.sum(1))
    reference = {"dz": dz, "dbias": dbias, "y": y.detach(), "zdz": zdz}
    got = check("act_bwd", f"{act}_bwd", args, reference, tile=tile, outputs=list(reference))
    given = normal(rng, m, n, dtype=t)
    (dz_map,) = torch.autograd.grad(ACTIVATIONS[act](z), z, wide(given))
    reference = {"dz": dz_map, "dbias": by_tile(dz_map, tile[0], 0, lambda p: p.sum(0))}
    args = {"dy": given, "z": args["z"]}
    check("act_bwd_map", f"{act}_bwd_map", args, reference, tile=tile, outputs=list(reference))
    total = load("act_bwd").sum_partials_m(partials=got.dbias).total
    np.testing.assert_allclose(total, dz.sum(0), atol=1e-4 * m)


def test_gelu_is_not_its_tanh_form() -> None:
    """They differ by up to 5e-4; each is held to less than that where they do."""
    z = np.linspace(-3.5, -1.5, 400, dtype=np.float32).astype(F16)[None, :]
    args = {"a": np.ones((1, 1), F16), "b": z.T.copy()}
    forms = {act: ACTIVATIONS[act](wide(z)).numpy() for act in ("gelu", "gelu_tanh")}
    apart = np.abs(forms["gelu"] - forms["gelu_tanh"])
    for act, other in (("gelu", "gelu_tanh"), ("gelu_tanh", "gelu")):
        got = check("linear_act", f"linear_{act}", args, {"y": forms[act]})
        bound = Analysis(load("linear_act")[f"linear_{act}"].ir, args).output("y").error
        assert bound.max() < 1.5e-4
        assert apart.max() > 4e-4
        assert (np.abs(got.y.astype(np.float64) - forms[other]) > bound).any()


@pytest.mark.parametrize("act", ["relu", "relu_sq", "gelu", "gelu_tanh", "silu", "quick_gelu"])
def test_gradients_at_large_inputs_are_finite(act: str) -> None:
    z = np.array([[-3e38, -1e20, -40, 40, 1e20, 3e38]], np.float32).astype(DTYPES["bf16"])
    one = np.ones((1, 1), DTYPES["bf16"])
    kernel = load("act_bwd")[f"{act}_bwd"]
    got = kernel(a=one, b=np.ones((1, 6), one.dtype), z=z, outputs=["dz"]).dz.astype(np.float64)
    slope = 2 * z.astype(np.float64) if act == "relu_sq" else 1.0
    largest = float(np.asarray(3.3895e38, DTYPES["bf16"]))
    expected = np.where(z.astype(np.float64) > 0, slope, 0.0)
    expected = np.where(expected > largest, np.inf, expected)  # 2·3e38 is beyond f32
    np.testing.assert_allclose(got, expected, rtol=2.0**-8, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_gradients(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(4)
    t = DTYPES[dtype]
    x, w, dz = normal(rng, m, k, dtype=t), normal(rng, n, k, dtype=t), normal(rng, m, n, dtype=t)
    xs, ws = wide(x).requires_grad_(), wide(w).requires_grad_()
    dx, dw = torch.autograd.grad(F.linear(xs, ws), (xs, ws), wide(dz))
    check("linear_dx", "linear_dx", {"a": dz, "b": w}, {"dx": dx})
    c = normal(rng, m, k, dtype=t)
    check("linear_dx", "linear_dx", {"a": dz, "b": w, "c": c}, {"dx": dx + wide(c)})
    check("linear_dw", "linear_dw", {"a": dz, "b": x}, {"dw": dw})
    old = normal(rng, n, k)
    kernel = load("linear_dw").linear_dw_accumulate
    bound = Analysis(kernel.ir, {"a": dz, "b": x, "dw": old.copy()}).output("dw").error
    held = old.copy()
    kernel(a=dz, b=x, dw=held)
    assert (np.abs(held - (wide(old) + dw).numpy()) <= bound + 1e-12).all()


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize(dtype: str, tile: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    args = operands(rng, (33, 40), (70, 40), DTYPES[dtype], 40)
    d = wide(args["a"]) @ wide(args["b"]).T
    scale = np.float32(448 / 2.5)  # clamps the tail
    absmax = by_tile(d, tile[1], 1, lambda p: p.abs().amax(1))
    reference = {"d": (d * float(scale)).clamp(-448, 448), "absmax": absmax}
    got = check("quantize", "quantize", {**args, "scale": np.asarray(scale)}, reference, tile=tile)
    assert (np.abs(got.d.astype(np.float32)) == 448).any()
    module = load("quantize")
    np.testing.assert_array_equal(module.quantize(**args, scale=float(scale)).d, got.d)
    largest = got.absmax.max()
    assert module.absmax_scale(absmax=got.absmax).scale == np.float32(448) / largest
    np.testing.assert_array_equal(module.quantize(**args, scale=448 / largest).d.astype(np.float32).max() <= 448, True)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_scaled_rounds_once(dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((33, 70)).astype(np.float32).astype(DTYPES.get(dtype, np.float32))
    scale = np.float32(1 / 3)
    exact = wide(x) * float(scale)
    got = check(
        "scaled", "scaled", {"x": x, "scale": np.asarray(scale)}, {"y": exact, "y16": exact}, outputs=["y", "y16"]
    )
    product = torch.from_numpy(x.astype(np.float32) * scale)
    np.testing.assert_array_equal(got.y.astype(np.float32), product.bfloat16().float().numpy())
    np.testing.assert_array_equal(got.y16, product.half().numpy())


def test_the_scale_of_nothing_stays() -> None:
    scale = load("quantize").absmax_scale
    for useless in (0.0, np.inf, np.nan):
        partials = np.array([[0.0, useless]], np.float32)
        assert scale(absmax=partials).scale == 1
        assert scale(absmax=partials, previous=np.float32(0.25)).scale == 0.25
    assert np.isfinite(scale(absmax=np.full((1, 1), 1e-40, np.float32)).scale)


@pytest.mark.parametrize("x", [448.0, 464.0, 465.0, 1000.0, np.inf, -np.inf, np.nan, -1000.0])
def test_f8_saturates_and_keeps_nan(x: float) -> None:
    one = np.ones((1, 1), DTYPES["bf16"])
    d = load("quantize").quantize.interpret(acc=np.array([[x]], np.float32), a=one, b=one, scale=1.0).d
    got = float(d[0, 0])
    assert np.isnan(got) if np.isnan(x) else got == np.clip(x, -448, 448)
