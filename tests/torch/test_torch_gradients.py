"""Each operation and its gradients against f64 autograd, beside PyTorch's own bf16.

An operation alone rounds where PyTorch does, so its error is PyTorch's up to chance (a few values here): `SLACK`. A
whole layer rounds less, and is held to PyTorch's error itself in test_torch_llama.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import ACTIVATIONS, cross_entropy, hold, logits, normal, relative, rms_norm, rotate_pairs, swiglu
from torch import Tensor

import coda_lang.torch as ct

SLACK = 1.3
BATCH = (2, 37)
X = normal(*BATCH, 64, seed=1)
RESIDUAL = normal(*BATCH, 48, seed=4)
WIDE = normal(96, 64, scale=0.125, seed=2)
NARROW = normal(48, 64, scale=0.125, seed=5)
NORM = 1 + normal(64, scale=0.3, seed=3)
COS, SIN = ct.rope_tables(40, 16)
POSITION = (torch.arange(37) + torch.tensor([[0], [2]])) % 40


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_act(activation: str, biased: bool) -> None:
    tensors = {"x": X, "weight": NARROW} | ({"bias": normal(48, seed=6)} if biased else {})
    hold(
        lambda x, weight, bias=None: ct.linear_act(x, weight, bias, activation),
        lambda x, weight, bias=None: ACTIVATIONS[activation](F.linear(x, weight, bias)),
        tensors,
        SLACK,
    )


def test_residual_rms_linear() -> None:
    def ours(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        d, h, rstd = ct.residual_rms_linear(x, weight, residual, norm)
        return d, (h * rstd[..., None]).to(d.dtype)

    def plain(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        d = residual + F.linear(x, weight)
        return d, rms_norm(d, norm)

    hold(ours, plain, {"x": X, "weight": NARROW, "residual": RESIDUAL, "norm": NORM[:48]}, SLACK)


@pytest.mark.parametrize("used", ["d", "h", "rstd"])
def test_each_result_of_residual_rms_linear_alone(used: str) -> None:
    """A gradient that one result lacks is no gradient, and no crash."""

    def ours(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        return ct.residual_rms_linear(x, weight, residual, norm)[["d", "h", "rstd"].index(used)]

    def plain(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        d = residual + F.linear(x, weight)
        rstd = torch.rsqrt((d if d.dtype == torch.float64 else d.float()).pow(2).mean(-1) + 1e-5)
        return {"d": d + 0 * norm, "h": d * norm, "rstd": rstd + 0 * norm.sum()}[used]

    tensors = {"x": X, "weight": NARROW, "residual": RESIDUAL, "norm": NORM[:48]}
    if used == "h":
        hold(ours, plain, tensors, SLACK)
        return
    fixed = tensors.pop("norm")
    hold(lambda **k: ours(**k, norm=fixed), lambda **k: plain(**k, norm=fixed), tensors, SLACK)


def test_linear_swiglu() -> None:
    hold(ct.linear_swiglu, lambda x, weight: swiglu(F.linear(x, weight)), {"x": X, "weight": WIDE}, SLACK)


def test_swiglu_mlp() -> None:
    def plain(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return F.linear(swiglu(F.linear(x, gate_up)), down)

    hold(ct.swiglu_mlp, plain, {"x": X, "gate_up": WIDE, "down": normal(20, 48, scale=0.125, seed=8)}, SLACK)


def test_linear_swiglu_with_bias() -> None:
    hold(
        lambda x, weight, bias: ct.linear_swiglu(x, weight, bias=bias),
        lambda x, weight, bias: swiglu(F.linear(x, weight, bias)),
        {"x": X, "weight": WIDE, "bias": normal(96, seed=7)},
        SLACK,
    )


def test_linear_swiglu_after_a_norm() -> None:
    def ours(x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        h, rstd = ct.input_rms(x, norm)
        return ct.linear_swiglu(h, weight, rstd)

    def plain(x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        return swiglu(F.linear(rms_norm(x, norm), weight))

    hold(ours, plain, {"x": X, "norm": NORM, "weight": WIDE}, SLACK)


@pytest.mark.parametrize("rotated", [96, 64])
@pytest.mark.parametrize("form", ["plain", "scaled", "fused"])
def test_linear_rope(form: str, rotated: int) -> None:
    """Alone; after a norm, by its scale; and with the norm in the same operation."""

    def ours(x: Tensor, weight: Tensor, norm: Tensor | None = None) -> Tensor:
        if norm is None:
            return ct.linear_rope(x, weight, COS, SIN, POSITION, None if rotated == 96 else rotated, head_dim=16)
        if form == "fused":
            return ct.rms_linear_rope(x, norm, weight, COS, SIN, POSITION, rotated, head_dim=16)
        h, rstd = ct.input_rms(x, norm)
        return ct.linear_rope(h, weight, COS, SIN, POSITION, rotated, rstd, head_dim=16)

    def plain(x: Tensor, weight: Tensor, norm: Tensor | None = None) -> Tensor:
        n = x if norm is None else rms_norm(x, norm)
        return rotate_pairs(F.linear(n, weight), COS, SIN, POSITION, rotated)

    hold(ours, plain, {"x": X, "weight": WIDE} | ({} if form == "plain" else {"norm": NORM}), SLACK)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"z_loss": 0.01},
    {"ignore_index": 7, "label_smoothing": 0.2, "z_loss": 0.003, "reduction": "none"},
    {"ignore_index": 7, "label_smoothing": 0.2, "z_loss": 0.003, "reduction": "sum"},
]


@pytest.mark.parametrize("chunk_rows", [None, 20])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(o) or "default")
def test_linear_cross_entropy(options: dict[str, Any], normed: bool, softcap: float, chunk_rows: int | None) -> None:
    target = torch.randint(96, BATCH, generator=torch.Generator().manual_seed(0))
    target[0, 3:9] = options.get("ignore_index", -100)

    def ours(x: Tensor, weight: Tensor, norm: Tensor | None = None) -> Tensor:
        h, rstd = (x, None) if norm is None else ct.input_rms(x, norm)
        return ct.linear_cross_entropy(
            h, weight, target, softcap=softcap, rstd=rstd, chunk_rows=chunk_rows, **options
        )  # fmt: skip

    def plain(x: Tensor, weight: Tensor, norm: Tensor | None = None) -> Tensor:
        return cross_entropy(logits(x if norm is None else rms_norm(x, norm), weight, softcap), target, **options)

    weight = WIDE * 2  # losses that differ
    hold(ours, plain, {"x": X, "weight": weight} | ({"norm": NORM} if normed else {}), SLACK)


def test_ignored_rows_of_the_cross_entropy() -> None:
    """Infinities in a row that is ignored reach neither the loss nor a gradient; with no row left the mean is NaN."""
    x, weight = X[0].clone(), WIDE.clone().requires_grad_()
    x[3] = float("inf")
    x.requires_grad_()
    target = torch.arange(37)
    target[3] = -100
    loss = ct.linear_cross_entropy(x, weight, target)
    loss.backward()
    assert loss.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not x.grad[3].any()


@pytest.mark.parametrize("chunk_rows", [None, 20])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_without_a_row_that_counts(reduction: str, chunk_rows: int | None) -> None:
    """Its mean is NaN and its gradient 0, as PyTorch's."""
    target = torch.full((37,), -100)
    for f in (
        lambda x, w: ct.linear_cross_entropy(x, w, target, reduction=reduction, chunk_rows=chunk_rows),
        lambda x, w: F.cross_entropy(F.linear(x, w).float(), target, reduction=reduction),
    ):
        x, weight = X[0].clone().requires_grad_(), WIDE.clone().requires_grad_()
        loss = f(x, weight)
        assert loss.isnan().all() if reduction == "mean" else not loss.any()
        loss.sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        assert not x.grad.any()
        assert not weight.grad.any()


@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_a_target_outside_the_vocabulary(chunk_rows: int | None) -> None:
    target = torch.tensor([0, 96, -1])
    losses = ct.linear_cross_entropy(X[0, :3], WIDE, target, reduction="none")
    assert losses.isnan().tolist() == [False, True, True]
    for reduction in ("none", "sum", "mean"):
        x, weight = X[0, :3].clone().requires_grad_(), WIDE.clone().requires_grad_()
        loss = ct.linear_cross_entropy(x, weight, target, reduction=reduction, chunk_rows=chunk_rows)
        assert loss.isnan().any()
        dx, dw = torch.autograd.grad(loss, [x, weight], torch.ones_like(loss))
        assert dx.isnan().all(1).tolist() == [False, True, True]
        assert dx[0].isfinite().all()
        assert dw.isnan().all()


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_without_rows(reduction: str, normed: bool) -> None:
    x, weight = X[0, :0].clone().requires_grad_(), WIDE.clone().requires_grad_()
    rstd = torch.ones(0, requires_grad=True) if normed else None
    loss = ct.linear_cross_entropy(x, weight, torch.zeros(0, dtype=torch.long), reduction=reduction, rstd=rstd)
    assert loss.isnan() if reduction == "mean" else loss == 0
    loss.backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert weight.grad is not None
    assert not weight.grad.any()
    assert rstd is None or rstd.grad is not None


@pytest.mark.parametrize("chunk_rows", [None, 40])
def test_a_loss_in_half_precision(chunk_rows: int | None) -> None:
    """The weight's gradient, summed over the rows, leaves the range of f16 before their mean brings it back."""
    half = torch.float16
    x, weight = 1000 + 8 * normal(128, 16, dtype=half), normal(512, 16, scale=1e-4, dtype=half, seed=1)
    target = torch.zeros(128, dtype=torch.long)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    given = [t.clone().requires_grad_() for t in (x, weight)]
    wide = torch.autograd.grad(F.cross_entropy(F.linear(*exact), target), exact)
    loss = ct.linear_cross_entropy(*given, target, chunk_rows=chunk_rows)
    (dw,) = torch.autograd.grad(loss, given[1], retain_graph=True)
    (dx,) = torch.autograd.grad(loss, given[0], torch.tensor(4096.0))  # as a loss is scaled for f16
    assert dx.dtype == dw.dtype == half
    assert relative(dx, 4096 * wide[0]) < 1e-3
    assert relative(dw, wide[1]) < 1e-3
    assert 128 * wide[1].abs().max() > torch.finfo(half).max


@pytest.mark.parametrize("chunk_rows", [None, 20])
@pytest.mark.parametrize("margin", [2.0, 4.0, 6.0])
def test_the_gradient_of_a_loss_that_is_nearly_nothing(margin: float, chunk_rows: int | None) -> None:
    """Each target's logit is some 20 + margin, the next one's 20: f16 rounds them by more than p differs from 1."""
    x = normal(40, 64, seed=20)
    inverse = torch.linalg.pinv(x.double())
    weight = torch.cat([(20 + margin) * inverse.T, 20 * inverse.sum(1)[None], torch.zeros(9, 64)]).bfloat16()
    hold(
        lambda x, weight: ct.linear_cross_entropy(x, weight, torch.arange(40), chunk_rows=chunk_rows),
        lambda x, weight: cross_entropy(logits(x, weight), torch.arange(40)),
        {"x": x, "weight": weight},
        SLACK,
    )


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows(count: int) -> None:
    x = X[0, :count].clone().requires_grad_()
    y = ct.linear_swiglu(x, WIDE.clone().requires_grad_())
    target = torch.zeros(count, dtype=torch.long)
    loss = ct.linear_cross_entropy(x, WIDE.clone().requires_grad_(), target, reduction="sum")
    (y.sum() + loss).backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_half_precision() -> None:
    x, weight = X.half().requires_grad_(), WIDE.half().requires_grad_()
    y = ct.linear_swiglu(x, weight)
    torch.testing.assert_close(y, swiglu(F.linear(x.double(), weight.double())).half(), rtol=2e-3, atol=2e-3)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ct.linear_act(X.float(), NARROW.float()), "float32, float32: cast them, or run under torch.autocast"),
        (lambda: ct.linear_act(X, NARROW.half()), "bfloat16, float16"),
        (lambda: ct.linear_act(X, NARROW, None, "gleu"), "no activation `gleu`"),
        (lambda: ct.linear_swiglu(X, NARROW[:, :60]), r"\[2, 37, 64\] and \[48, 60\]"),
        (lambda: ct.linear_swiglu(X, WIDE, X[..., 0].float(), NORM), "rstd or bias, not both"),
        (lambda: ct.swiglu_mlp(X, WIDE, WIDE), r"needs a down \[N, I\], got \[96, 64\]"),
        (lambda: ct.residual_rms_linear(X, NARROW, X, NORM[:48]), r"residual must be \[2, 37, 48\]"),
        (lambda: ct.input_rms(X, NORM[:48]), r"norm_weight must be \[64\], got \[48\]"),
        (
            lambda: ct.linear_rope(X, WIDE, COS, SIN, POSITION[0], head_dim=16),
            r"position must be int32 or int64 \[2, 37\]",
        ),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION[0]), r"target must be \[2, 37\]"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, reduction="avg"), "'avg'"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, chunk_rows=0), "chunk_rows is an integer from 1"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, chunk_rows=2.5), "chunk_rows is an integer"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, label_smoothing=1.5), "from 0 to 1, got 1.5"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, label_smoothing=float("nan")), "from 0 to 1, got nan"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, z_loss=None), "z_loss is a number"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, softcap=-5.0), "softcap is a number from 0"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, softcap=float("inf")), "softcap is a number from 0"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, ignore_index=2**63), "ignore_index is an integer"),
        (lambda: ct.linear_cross_entropy(X, WIDE, POSITION, rstd=torch.ones(37, 2)), r"rstd must be \[2, 37\]"),
        (lambda: ct.linear_swiglu(X, WIDE, torch.ones(74)), r"rstd must be \[2, 37\]"),
        (
            lambda: ct.linear_rope(X, WIDE, COS, SIN, POSITION, rstd=torch.ones(74), head_dim=16),
            r"rstd must be \[2, 37\]",
        ),
    ],
)
def test_mistakes(call: Any, message: str) -> None:
    from coda_lang import ArgumentError

    with pytest.raises(ArgumentError, match=message):
        call()


def test_an_ignored_index_that_the_targets_type_does_not_hold() -> None:
    """No target is that one."""
    target = torch.tensor([3, 3, 1, 2])
    found = [ct.linear_cross_entropy(X[0, :4], WIDE, t, ignore_index=2**32 + 3) for t in (target, target.int())]
    assert found[0] == found[1]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_of_losses_with_gradients(reduction: str) -> None:
    """Under vmap a batched tensor does not say that it requires a gradient; the shared weight does."""
    xs, weight = X[:, :4].clone().requires_grad_(), WIDE.clone().requires_grad_()
    target = torch.tensor([3, 1, -100, 2])

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return ct.linear_cross_entropy(x, w, target, reduction=reduction)

    together = torch.vmap(loss, (0, None))(xs, weight)
    apart = torch.stack([loss(x, weight) for x in xs])
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-3)
    for got, want in zip(
        torch.autograd.grad(together.sum(), [xs, weight]), torch.autograd.grad(apart.sum(), [xs, weight]), strict=True
    ):
        assert relative(got, want.double()) < 1e-2


def test_a_head_of_no_columns() -> None:
    x, weight = X[0, :3, :0].clone().requires_grad_(), WIDE[:, :0].clone().requires_grad_()
    loss = ct.linear_cross_entropy(x, weight, torch.arange(3))
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(96.0).log())
    with pytest.raises(TypeError, match="smoothing"):
        ct.LinearCrossEntropy(16, 50, smoothing=0.1)
