"""Cross-entropy against torch's, backward by autograd, and the inputs that break such programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import DTYPES, TILES, by_tile, check, compare, load, normal, operands, wide

import coda_lang as coda
from coda_lang.interp.bounds import Analysis

IGNORE = -100
SHAPES = [(1, 1, 1), (3, 10, 7), (65, 131, 37), (19, 1000, 40)]  # M, V (any), K


def targets(rng: np.random.Generator, m: int, v: int, index: Any = np.int64) -> Any:
    """The first and last columns among them, and an ignored row."""
    t = rng.integers(0, v, m).astype(index)
    t[:2] = [v - 1, 0][: len(t)]
    t[2:3] = IGNORE
    return t


def picked(z: torch.Tensor, target: Any) -> torch.Tensor:
    safe = torch.from_numpy(np.where(target == IGNORE, 0, target).astype(np.int64))
    t = z.gather(1, safe[:, None])[:, 0]
    return torch.where(torch.from_numpy(target == IGNORE), 0.0, t)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape: tuple[int, int, int], tile: tuple[int, int], dtype: str, index: Any) -> None:
    """Through the reduces to the mean loss, with and without smoothing, z-loss, softcap and RMSNorm."""
    m, v, k = shape
    rng = np.random.default_rng(1)
    args = operands(rng, (m, k), (v, k), DTYPES[dtype], k) | {"target": targets(rng, m, v, index)}
    logits = F.linear(wide(args["a"]), wide(args["b"]))
    rstd = rng.uniform(0.5, 3, m).astype(np.float32)
    scaled = logits * wide(rstd)[:, None]
    for cap in (None, 1.5):
        capped = (lambda x: x) if cap is None else (lambda x: 1.5 * torch.tanh(x / 1.5))
        extra = {} if cap is None else {"cap": cap}
        for file, z, given in (("cross_entropy", capped(logits), args | extra),
                               ("rmsnorm_cross_entropy", capped(scaled), args | extra | {"rstd": rstd})):  # fmt: skip
            reference = {"z": z, **statistics(z, args["target"], tile)}
            got = check(file, file, given, reference, tile=tile, outputs=list(reference))
            check_loss(file, z, got, reference, args["target"])


def statistics(z: torch.Tensor, target: Any, tile: tuple[int, int]) -> dict[str, torch.Tensor]:
    return {
        "lse": by_tile(z, tile[1], 1, lambda p: p.logsumexp(1)),
        "t": picked(z, target),
        "zsum": by_tile(z, tile[1], 1, lambda p: p.sum(1)),
    }


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("file", ["cross_entropy", "rmsnorm_cross_entropy"])
def test_kept_logits(file: str, cap: float | None, tile: tuple[int, int], dtype: str, index: Any) -> None:
    """They are the product rounded to f16, and all else is of what was kept: of integers and halves, exactly."""
    rng = np.random.default_rng(11)
    m, v, k = 19, 1000, 40
    whole = DTYPES[dtype]
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float32).astype(whole) for rows in (m, v))
    rstd = (2.0 ** rng.integers(-9, -6, m)).astype(np.float32)
    x = F.linear(wide(a), wide(b))
    given = {"a": a, "b": b, "target": targets(rng, m, v, index)} | ({} if cap is None else {"cap": cap})
    if file != "cross_entropy":
        x, given = x * wide(rstd)[:, None], given | {"rstd": rstd}
    rounded = x.to(torch.float16).double()
    z = rounded if cap is None else cap * torch.tanh(rounded / cap)
    outputs = ["kept", "lse", "t", "zsum"]
    got = check(
        file, f"{file}_kept", given, {"kept": x, **statistics(z, given["target"], tile)}, tile=tile, outputs=outputs
    )
    np.testing.assert_array_equal(got.kept, x.numpy().astype(np.float16))


@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
def test_kept_logits_give_probabilities(scale: float) -> None:
    """exp(z − lse) sums to 1, and so the gradient of a row to 0, however large the logits that were rounded."""
    rng = np.random.default_rng(12)
    a, b = normal(rng, 30, 16, scale=scale, dtype=DTYPES["bf16"]), normal(rng, 500, 16, dtype=DTYPES["bf16"])
    target = targets(rng, 30, 500)
    module = load("cross_entropy")
    kept = module.cross_entropy_kept(a=a, b=b, target=target)
    lse = module.lse_from_partials(lse=kept.lse).lse
    rows = (
        load("cross_entropy_bwd_map").cross_entropy_bwd_map(x=kept.kept, lse=lse, target=target, outputs=["da16"]).da16
    )
    assert np.abs(rows.astype(np.float64).sum(1)).max() < 2e-3
    z = torch.from_numpy(kept.kept.astype(np.float64)).requires_grad_()
    F.cross_entropy(z, torch.from_numpy(target), reduction="sum").backward()
    assert z.grad is not None
    np.testing.assert_allclose(rows.astype(np.float64), z.grad.numpy(), atol=2.0**-11)


def check_loss(file: str, z: torch.Tensor, got: coda.Result, partials: dict[str, Any], target: Any) -> None:
    _m, v = z.shape
    whole, mean = z.logsumexp(1), z.mean(1)
    lse = check(file, "lse_from_partials", {"lse": got.lse}, {"lse": whole}, {"lse": partials["lse"]}).lse
    zsum = {"partials": got.zsum, "N": v}
    zmean = check(file, "mean_from_partials", zsum, {"mean": mean}, {"partials": partials["zsum"]}).mean
    given = {"lse": lse, "t": got.t, "target": target}
    exact = {"lse": whole, "t": partials["t"]}
    at = torch.from_numpy(target.astype(np.int64))
    loss = F.cross_entropy(z, at)
    check(file, "loss_from_lse", given, {"loss": loss}, exact)
    kept = at != IGNORE
    smooth = F.cross_entropy(z, at, label_smoothing=0.1) + 1e-2 * whole[kept].pow(2).mean()
    rows = F.cross_entropy(z, at, label_smoothing=0.1, reduction="none") + torch.where(kept, 1e-2 * whole.pow(2), 0.0)
    options = {"zmean": zmean, "eps": 0.1, "zeta": 1e-2}
    reference = {"loss": smooth, "losses": rows}
    check(file, "loss_from_lse", given | options, reference, exact | {"zmean": mean}, outputs=["loss", "losses"])


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(shape: tuple[int, int, int], dtype: str, index: Any) -> None:
    """A non-uniform gradient for each row's loss, as autograd carries it back."""
    m, v, k = shape
    rng = np.random.default_rng(2)
    args = operands(rng, (m, k), (v, k), DTYPES[dtype], k) | {"target": targets(rng, m, v, index)}
    dloss = normal(rng, m)
    at = torch.from_numpy(args["target"].astype(np.int64))
    rstd = rng.uniform(0.5, 3, m).astype(np.float32)
    for options in ({}, {"eps": 0.1, "zeta": 1e-2, "cap": 2.0}):
        for normed in (False, True):
            product = F.linear(wide(args["a"]), wide(args["b"]))
            x = (product * wide(rstd)[:, None] if normed else product).requires_grad_()
            z = 2 * torch.tanh(x / 2) if options else x
            losses = F.cross_entropy(z, at, label_smoothing=options.get("eps", 0.0), reduction="none")
            lse = z.logsumexp(1)
            losses = losses + torch.where(at != IGNORE, options.get("zeta", 0.0) * lse**2, 0.0)
            (dz,) = torch.autograd.grad(losses, x, wide(dloss))
            lse = lse.detach()
            given = args | options | {"lse": lse.numpy().astype(np.float32), "dloss": dloss}
            reference = {"dz": dz}
            if normed:
                given["rstd"] = rstd
                reference["zdz"] = by_tile(x.detach() * dz, 24, 1, lambda p: p.sum(1))
                reference["da"] = dz * wide(rstd)[:, None]
            file = "rmsnorm_cross_entropy_bwd" if normed else "cross_entropy_bwd"
            got = check(file, file, given, reference, {"lse": lse}, (16, 24), list(reference))
            assert (got.dz[args["target"] == IGNORE].view(np.uint16) & 0x7FFF == 0).all()  # exactly zero


OPTIONS: list[dict[str, float]] = [{}, {"eps": 0.1, "zeta": 1e-2, "cap": 2.0}]


def from_kept(
    x: torch.Tensor, target: Any, dloss: torch.Tensor, **options: float
) -> tuple[dict[str, Any], dict[str, Any], torch.Tensor]:
    """The map's arguments for logits x, what they stand for, and the gradient of Σ dloss·losses by autograd."""
    x = x.clone().requires_grad_()
    cap, at = options.get("cap", 0.0), torch.from_numpy(target.astype(np.int64))
    z = cap * torch.tanh(x / cap) if cap else x
    lse = z.logsumexp(1)
    losses = F.cross_entropy(z, at, label_smoothing=options.get("eps", 0.0), reduction="none")
    losses = losses + torch.where(at != IGNORE, options.get("zeta", 0.0) * lse**2, 0.0)
    (dx,) = torch.autograd.grad(losses, x, dloss)
    exact = {"x": x.detach(), "lse": lse.detach()}
    given = {n: v.numpy().astype(np.float32) for n, v in exact.items()}
    given |= {"x": x.detach().numpy().astype(np.float16), "target": target, **options}
    return given, exact, dx


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward_from_the_kept_logits(shape: tuple[int, int, int], tile: tuple[int, int], index: Any) -> None:
    """With rows that weigh the same and rows that do not, and with a norm's scale, as autograd carries it back."""
    m, v, _ = shape
    rng = np.random.default_rng(9)
    x, dloss = wide(normal(rng, m, v, scale=3.0)), normal(rng, m)
    rstd = rng.uniform(0.5, 3, m).astype(np.float32)
    for options in OPTIONS:
        for weighted in (False, True):
            for normed in (False, True):
                weights = wide(dloss) if weighted else torch.ones(m, dtype=torch.float64)
                given, exact, dz = from_kept(x, targets(rng, m, v, index), weights, **options)
                given |= ({"dloss": dloss} if weighted else {}) | ({"rstd": rstd} if normed else {})
                da = dz * wide(rstd)[:, None] if normed else dz
                reference = {"da": da, "da16": da, "zdz": by_tile(x * dz, tile[1], 1, lambda p: p.sum(1))}
                got = check(
                    "cross_entropy_bwd_map", "cross_entropy_bwd_map", given, reference, exact, tile, list(reference)
                )
                ignored = given["target"] == IGNORE
                assert (got.da[ignored].astype(np.float32) == 0).all()
                assert (got.da16[ignored] == 0).all()


@pytest.mark.parametrize("output", ["da", "da16"])
def test_the_gradient_may_take_the_logits_place(output: str) -> None:
    rng = np.random.default_rng(10)
    rstd = rng.uniform(0.5, 3, 65).astype(np.float32)
    given, _, _ = from_kept(wide(normal(rng, 65, 130)), targets(rng, 65, 130), torch.ones(65, dtype=torch.float64))
    program = load("cross_entropy_bwd_map").cross_entropy_bwd_map
    want = program(**given, rstd=rstd, outputs=[output, "zdz"])
    place = given["x"].view(DTYPES["bf16"]) if output == "da" else given["x"]
    got = program(**given, rstd=rstd, outputs=[output, "zdz"], out={output: place})
    assert got[output] is place
    np.testing.assert_array_equal(place.view(np.uint16), want[output].view(np.uint16))
    np.testing.assert_array_equal(got.zdz, want.zdz)


def test_logits_that_f16_does_not_hold() -> None:
    """Infinite or NaN in their row, and only there; a softcap makes them harmless."""
    x = torch.zeros(3, 20, dtype=torch.float64)
    x[1, 4] = 70_000.0
    program = load("cross_entropy_bwd_map").cross_entropy_bwd_map
    with np.errstate(over="ignore"):
        plain, _, _ = from_kept(x, np.array([4, 5, 6]), torch.ones(3, dtype=torch.float64))
        capped, _, _ = from_kept(x, np.array([4, 5, 6]), torch.ones(3, dtype=torch.float64), cap=3.0)
    finite = np.isfinite(program(**plain).da.astype(np.float32)).all(1)
    np.testing.assert_array_equal(finite, [True, False, True])
    assert np.isfinite(program(**capped).da.astype(np.float32)).all()


def test_rows_of_the_map_without_a_gradient() -> None:
    """Ignored rows are 0 whatever they hold, and a target outside the columns makes its row NaN."""
    x = np.zeros((6, 20), np.float16)
    x[0], x[1], x[5, 4] = np.inf, np.nan, -np.inf
    lse = np.full(6, np.log(20), np.float32)
    lse[:2], lse[5] = np.nan, np.log(19)
    target = np.array([IGNORE, IGNORE, 20, -1, 3, 3])
    outputs = ["da", "zdz"]
    got = load("cross_entropy_bwd_map").cross_entropy_bwd_map(x=x, lse=lse, target=target, outputs=outputs)
    da, zdz = got.da.astype(np.float32), got.zdz.sum(1)
    assert (da[:2] == 0).all()
    assert np.isnan(da[2:4]).all()
    assert np.isfinite(da[4:]).all()
    assert (zdz[[0, 1, 5]] == 0).all()
    capped = load("cross_entropy_bwd_map").cross_entropy_bwd_map(x=x[5:] * -1, lse=lse[5:], target=target[5:], cap=3.0)
    assert np.isfinite(capped.da.astype(np.float32)).all()


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_per_token_loss_with_an_upstream_gradient(index: Any) -> None:
    """B 2, T 4, V 15: the whole chain to dx of x @ W.T."""
    rng = np.random.default_rng(3)
    x, w = normal(rng, 8, 16, dtype=DTYPES["bf16"]), normal(rng, 15, 16, dtype=DTYPES["bf16"])
    target = rng.integers(0, 15, 8).astype(index)
    weight = rng.uniform(-2, 2, 8).astype(np.float32)
    xs = wide(x).requires_grad_()
    losses = F.cross_entropy(F.linear(xs, wide(w)).view(2, 4, 15).transpose(1, 2),
                             torch.from_numpy(target.astype(np.int64)).view(2, 4), reduction="none")  # fmt: skip
    (expected,) = torch.autograd.grad(losses, xs, wide(weight).view(2, 4))
    forward, backward = load("cross_entropy"), load("cross_entropy_bwd")
    out = forward.cross_entropy(a=x, b=w, target=target)
    lse = forward.lse_from_partials(lse=out.lse).lse
    dz = backward.cross_entropy_bwd(a=x, b=w, lse=lse, target=target, dloss=weight).dz
    kernel = load("linear_dx").linear_dx
    got = kernel(a=dz, b=w).dx
    hot = F.one_hot(torch.from_numpy(target.astype(np.int64)), 15)
    exact_dz = (torch.softmax(F.linear(wide(x), wide(w)), 1) - hot) * wide(weight)[:, None]
    bound = Analysis(kernel.ir, {"a": dz, "b": w}, {"a": exact_dz.numpy()}).output("dx").error
    compare(got, expected.numpy(), bound, "dx")


# -- inputs that break such programs ---------------------------------------------------------------------------------


def tapped(logits: Any, target: Any, tile: tuple[int, int] = (128, 256), **more: Any) -> coda.Result:
    """cross_entropy on given logits."""
    logits = np.asarray(logits, np.float32)
    m, v = logits.shape
    t = DTYPES["bf16"]
    blank = {"a": np.zeros((m, 1), t), "b": np.zeros((v, 1), t)}
    return load("cross_entropy").cross_entropy.interpret(acc=logits, **blank, target=target, tile=tile, **more)


def combined(lse: Any) -> Any:
    return load("cross_entropy").lse_from_partials(lse=lse).lse


def test_columns_past_the_end_do_not_enter() -> None:
    out = tapped(np.full((2, 1160), -50.0), np.array([0, 1159]))
    np.testing.assert_allclose(combined(out.lse), -50 + np.log(1160), rtol=1e-6)
    np.testing.assert_array_equal(out.t, -50)


def test_minus_infinity() -> None:
    logits = np.zeros((3, 160))
    logits[0, :128] = -np.inf
    logits[1] = -np.inf
    out = tapped(logits, np.array([150, 0, 0]), tile=(128, 64))
    np.testing.assert_array_equal(np.isneginf(out.lse), [[True, True, False], [True] * 3, [False] * 3])
    np.testing.assert_allclose(combined(out.lse), [np.log(32), -np.inf, np.log(160)], rtol=1e-6)
    assert out.t[0] == 0
    assert out.t[1] == -np.inf


def test_plus_infinity_and_nan_keep_to_their_rows() -> None:
    logits = np.zeros((4, 100))
    logits[1, 70], logits[2, 30] = np.inf, np.nan
    lse = combined(tapped(logits, np.zeros(4, np.int64), tile=(2, 32)).lse)
    np.testing.assert_array_equal(lse, np.array([np.log(100), np.inf, np.nan, np.log(100)], np.float32))


@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_nan_in_an_operand_stays_in_its_row(cap: float) -> None:
    rng = np.random.default_rng(4)
    args = operands(rng, (5, 8), (20, 8), DTYPES["bf16"], 8)
    args["a"][2, 3] = np.nan
    target, ones = np.array([1, 2, 3, 4, IGNORE]), np.ones(5, np.float32)
    out = load("cross_entropy").cross_entropy(**args, target=target, cap=cap)
    lse = combined(out.lse)
    dz = load("cross_entropy_bwd").cross_entropy_bwd(**args, lse=lse, target=target, dloss=ones, cap=cap).dz
    for x in (lse, out.t, dz.astype(np.float32).sum(1)):
        np.testing.assert_array_equal(np.isnan(x), [False, False, True, False, False])


def test_an_ignored_row_may_hold_anything() -> None:
    args = operands(np.random.default_rng(5), (2, 8), (20, 8), DTYPES["bf16"], 8)
    args["a"][1] = np.nan
    target = np.array([3, IGNORE])
    module = load("cross_entropy")
    out = module.cross_entropy(**args, target=target)
    loss = module.loss_from_lse(lse=combined(out.lse), t=out.t, target=target).loss
    assert out.t[1] == 0
    assert np.isfinite(loss)
    backward, dloss = load("cross_entropy_bwd").cross_entropy_bwd, np.full(2, np.inf, np.float32)
    dz = backward(**args, lse=combined(out.lse), target=target, dloss=dloss).dz
    assert (dz[1].astype(np.float32) == 0).all()


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_the_last_column_of_a_ragged_tile(index: Any) -> None:
    rng = np.random.default_rng(6)
    logits = normal(rng, 2, 1000)
    target = np.array([999, 999], index)
    out = tapped(logits, target)
    np.testing.assert_array_equal(out.t, logits[:, 999])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_target_outside_the_columns(index: Any) -> None:
    """NaN in its own row, forward and backward; an ArgumentError with `check=True`."""
    target = np.array([0, 1000, -1, 10**6, 5], index)
    logits = np.zeros((5, 1000), np.float32)
    out = tapped(logits, target)
    np.testing.assert_array_equal(np.isnan(out.t), [False, True, True, True, False])
    with pytest.raises(coda.ArgumentError, match="target"):
        tapped(logits, target, check=True)
    t = DTYPES["bf16"]
    dz = load("cross_entropy_bwd").cross_entropy_bwd(
        a=np.zeros((5, 1), t), b=np.zeros((1000, 1), t), lse=np.full(5, np.log(1000), np.float32), target=target,
        dloss=np.ones(5, np.float32),
    ).dz  # fmt: skip
    np.testing.assert_array_equal(np.isnan(dz.astype(np.float32)).all(1), [False, True, True, True, False])
    assert not np.isnan(dz[[0, 4]].astype(np.float32)).any()


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_an_ignore_index_beyond_the_columns(index: Any) -> None:
    """V = 3 with ignore_index = 255, as label images have."""
    rng = np.random.default_rng(7)
    args = operands(rng, (6, 8), (3, 8), DTYPES["f16"], 8)
    target = np.array([0, 255, 2, 1, 255, 0], index)
    module = load("cross_entropy")
    out = module.cross_entropy(**args, target=target, ignore_index=255, check=True)
    loss = module.loss_from_lse(lse=combined(out.lse), t=out.t, target=target, ignore_index=255).loss
    z = F.linear(wide(args["a"]), wide(args["b"]))
    expected = F.cross_entropy(z, torch.from_numpy(target.astype(np.int64)), ignore_index=255)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    backward, ones = load("cross_entropy_bwd").cross_entropy_bwd, np.ones(6, np.float32)
    dz = backward(**args, lse=combined(out.lse), target=target, dloss=ones, ignore_index=255).dz
    np.testing.assert_array_equal((dz == 0).all(1), target == 255)


def test_all_ignored_is_nan_as_in_torch() -> None:
    args = operands(np.random.default_rng(8), (4, 8), (9, 8), DTYPES["bf16"], 8)
    target = np.full(4, IGNORE)
    module = load("cross_entropy")
    out = module.cross_entropy(**args, target=target)
    assert (out.t == 0).all()
    assert np.isnan(module.loss_from_lse(lse=combined(out.lse), t=out.t, target=target).loss)
    assert torch.isnan(F.cross_entropy(torch.zeros(4, 9), torch.from_numpy(target)))
