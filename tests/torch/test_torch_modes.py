"""The operations as PyTorch's machinery uses them: registration, compilation, autocast, checkpoints, frozen inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import normal, relative
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import coda_lang.torch as ct
from coda_lang.torch import act, calls, cross_entropy, cross_entropy_total, llama, residual_rms, rope, swiglu

M, N, K = 9, 24, 16
COS, SIN = ct.rope_tables(16, 8)
POSITION = torch.arange(M) % 16
TARGET = (torch.arange(M) * 5) % N
TARGET[2] = -100


def leaf(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, shift: float = 0.0) -> Tensor:
    return (normal(*shape, scale=0.5, dtype=dtype, seed=seed) + shift).requires_grad_()


def scale(seed: int = 0) -> Tensor:
    return (normal(M, dtype=torch.float32, seed=seed).abs() + 0.5).requires_grad_()


def vector(n: int, seed: int = 0) -> Tensor:
    return leaf(n, dtype=torch.float32, seed=seed)


def mlp_arguments() -> list[Tensor]:
    """y, out, x, norm_weight, gate_up, down."""
    return [leaf(M, N), leaf(K, N, seed=1), leaf(M, K, seed=2), vector(K), leaf(2 * N, K, seed=3), leaf(K, N, seed=4)]


TABLE = (COS, SIN, POSITION)
LOSS = {"ignore_index": -100, "eps": 0.1, "zeta": 0.01, "cap": 3.0, "chunk_rows": 4}
TOTAL = LOSS | {"mean": True, "want_x": True, "want_weight": True, "want_rstd": True}

# name: (operation, its arguments, its options). Every operation that is registered, with and without optional inputs.
OPERATIONS: dict[str, tuple[Any, Callable[[], list[Any]], dict[str, Any]]] = {
    "linear_act": (
        act.forward_op, lambda: [leaf(M, K), leaf(N, K), vector(N)], {"activation": "gelu", "keep": True},
    ),
    "linear_act without bias": (
        act.forward_op, lambda: [leaf(M, K), leaf(N, K), None], {"activation": "relu_sq", "keep": True},
    ),
    "act_grad": (
        act.grad_op, lambda: [normal(M, N), normal(M, N)], {"activation": "silu", "want_bias": True},
    ),
    "input_rms": (residual_rms.input_op, lambda: [leaf(M, K), vector(K), 1e-5], {}),
    "residual_rms_linear": (
        residual_rms.forward_op, lambda: [leaf(M, K), leaf(N, K), leaf(M, N), vector(N), 1e-5], {},
    ),
    "rms_grad": (
        residual_rms.grad_op,
        lambda: [normal(M, N), normal(M, N), normal(N).float(), scale().detach(), normal(M).float(), None],
        {"want_norm": True},
    ),
    "rms_linear_grad": (
        residual_rms.linear_grad_op,
        lambda: [
            normal(M, N), normal(N, K), normal(M, K), scale().detach(), normal(K).float(), normal(M).float(),
            normal(M, K),
        ],
        {"want_normed": True, "want_norm": True},
    ),
    "linear_swiglu": (swiglu.forward_op, lambda: [leaf(M, K), leaf(N, K), scale(), None], {"keep": True}),
    "linear_swiglu with bias": (swiglu.forward_op, lambda: [leaf(M, K), leaf(N, K), None, vector(N)], {"keep": True}),
    "swiglu_grad": (
        swiglu.grad_op, lambda: [normal(M, N), normal(M, 2 * N), None], {"want_zdz": True, "want_bias": True},
    ),
    "linear_swiglu_grad": (
        swiglu.linear_grad_op, lambda: [normal(M, K), normal(K, N), normal(M, 2 * N)], {"width": K, "want_y": True},
    ),
    "linear_swiglu_grad_": (
        swiglu.overwriting_grad_op, lambda: [normal(M, K), normal(K, N), normal(M, 2 * N)],
        {"width": K, "want_y": True},
    ),
    "swiglu_mlp": (swiglu.mlp_op, lambda: [leaf(M, K), leaf(2 * N, K), leaf(K, N)], {"keep": True}),
    "linear_rope": (rope.forward_op, lambda: [leaf(M, K), leaf(N, K), scale(), *TABLE], {"rotated": 16}),
    "rope_grad": (
        rope.grad_op, lambda: [normal(M, N), normal(M, N), None, *TABLE], {"rotated": 16, "width": K},
    ),
    "linear_cross_entropy": (cross_entropy.forward_op, lambda: [leaf(M, K), leaf(N, K), scale(), TARGET], LOSS),
    "linear_cross_entropy alone": (
        cross_entropy.forward_op, lambda: [leaf(M, K), leaf(N, K), None, TARGET], LOSS | {"chunk_rows": 128},
    ),
    "linear_cross_entropy_total": (
        cross_entropy_total.total_op, lambda: [leaf(M, K), leaf(N, K), scale(), TARGET], TOTAL,
    ),
    "linear_cross_entropy_total alone": (
        cross_entropy_total.total_op, lambda: [leaf(M, K), leaf(N, K), None, TARGET],
        TOTAL | {"chunk_rows": 128, "mean": False, "want_rstd": False, "eps": 0.0, "zeta": 0.0, "cap": 0.0},
    ),
    "linear_cross_entropy_total of f16": (
        cross_entropy_total.total_op,
        lambda: [leaf(M, K, dtype=torch.float16), leaf(N, K, dtype=torch.float16), scale(), TARGET],
        TOTAL | {"chunk_rows": 128},
    ),
    "scaled": (
        cross_entropy_total.scaled_op, lambda: [normal(M, K).float(), torch.tensor(0.3)], {"dtype": torch.bfloat16},
    ),
    "cross_entropy_grad": (
        cross_entropy.grad_op,
        lambda: [normal(M, K), normal(N, K), scale().detach(), TARGET, normal(M).float() + 4, normal(M).float()],
        LOSS | {"want_x": True, "want_weight": True, "want_rstd": True},
    ),
    "rms_linear_rope": (
        llama.rope_op, lambda: [leaf(M, K), vector(K), leaf(N, K), *TABLE], {"rotated": 16, "eps": 1e-5},
    ),
    "llama_mlp": (llama.mlp_op, mlp_arguments, {"eps": 1e-5, "keep": True}),
    "llama_span": (
        llama.span_op, lambda: [*mlp_arguments(), vector(K, 1), leaf(N, K), *TABLE],
        {"rotated": 16, "eps": 1e-5, "keep": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_opcheck(name: str) -> None:
    op, arguments, options = OPERATIONS[name]
    torch.library.opcheck(op, arguments(), options)


def test_every_operation_is_checked() -> None:
    registered = {n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names() if n.startswith("coda_lang::")}
    checked = {op._name for op, _, _ in OPERATIONS.values()}
    assert registered == checked


# -- frozen inputs: the products that a gradient needs, and no others --


class Products:
    """Lists the calls of torch.mm, and the kernels that have a product."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        run = calls.run

        def counting(file: str, name: str, outputs: Any, **arguments: Any) -> Any:
            if calls.module(file)[name].kind == "kernel":
                self.seen.append(name)
            return run(file, name, outputs, **arguments)

        monkeypatch.setattr(calls, "run", counting)

    def of(self, f: Callable[[], None]) -> list[str]:
        self.seen.clear()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            f()
        return sorted([*self.seen, *(e.name.removeprefix("aten::") for e in profile.events() if e.name == "aten::mm")])


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Products:
    return Products(monkeypatch)


def backward_products(
    products: Products, f: Callable[..., Any], tensors: list[Any], needed: tuple[int, ...]
) -> list[str]:
    """What the backward pass runs when only the tensors at `needed` require a gradient; checks that these get one."""
    given = [t.detach().requires_grad_(i in needed) if isinstance(t, Tensor) else t for i, t in enumerate(tensors)]
    outputs = f(*given)
    loss = sum(y.float().square().sum() for y in (outputs if isinstance(outputs, tuple) else (outputs,)))
    seen = products.of(loss.backward)
    for i, t in enumerate(given):
        if isinstance(t, Tensor):
            assert (t.grad is not None) == (i in needed)
    return seen


@pytest.mark.parametrize(
    ("needed", "expected"), [((0, 1, 2), ["mm", "mm"]), ((0,), ["mm"]), ((1,), ["mm"]), ((2,), [])]
)
@pytest.mark.parametrize("name", ["act", "swiglu", "rope"])
def test_frozen_inputs_of_a_linear_layer(
    products: Products, name: str, needed: tuple[int, ...], expected: list[str]
) -> None:
    f: Callable[..., Tensor] = {
        "act": ct.linear_act,
        "swiglu": ct.linear_swiglu,
        "rope": lambda x, w, r: ct.linear_rope(x, w, COS, SIN, POSITION, 16, r, head_dim=8),
    }[name]
    third = vector(N) if name == "act" else scale()
    assert backward_products(products, f, [leaf(M, K), leaf(N, K), third], needed) == expected


@pytest.mark.parametrize(
    ("needed", "expected"),
    [((0, 1, 2), ["mm", "mm"]), ((0,), ["mm"]), ((1,), ["mm"]), ((2,), []), ((3,), [])],
)
def test_frozen_inputs_of_residual_rms(products: Products, needed: tuple[int, ...], expected: list[str]) -> None:
    tensors = [leaf(M, K), leaf(N, K), leaf(M, N), vector(N)]
    assert backward_products(products, ct.residual_rms_linear, tensors, needed) == expected


@pytest.mark.parametrize(("needed", "chunked", "expected"), [
    ((0, 1), False, ["cross_entropy_bwd", "mm", "mm"]),
    ((0,), False, ["cross_entropy_bwd", "mm"]),
    ((1,), False, ["cross_entropy_bwd", "mm"]),
    ((1,), True, ["cross_entropy_bwd"] * 2 + ["linear_dw_accumulate"] * 2),
    ((0,), True, ["cross_entropy_bwd"] * 2 + ["mm"] * 2),
])  # fmt: skip
def test_frozen_inputs_of_the_loss(
    products: Products, needed: tuple[int, ...], chunked: bool, expected: list[str]
) -> None:
    """Whose rows are weighed by the backward pass."""

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return ct.linear_cross_entropy(x, weight, TARGET, chunk_rows=5 if chunked else None, reduction="none")

    seen = backward_products(products, f, [leaf(M, K), leaf(N, K)], needed)
    assert seen == expected


@pytest.mark.parametrize(("needed", "chunked", "expected"), [
    ((), True, ["cross_entropy"]),
    ((0, 1, 2), False, ["mm", "mm", "rmsnorm_cross_entropy_kept"]),
    ((0, 1), False, ["cross_entropy_kept", "mm", "mm"]),
    ((0,), False, ["cross_entropy_kept", "mm"]),
    ((1,), False, ["cross_entropy_kept", "mm"]),
    ((2,), True, ["rmsnorm_cross_entropy_kept"] * 2),
    ((1,), True, ["cross_entropy_kept"] * 2 + ["linear_dw_accumulate", "linear_dw_f32"]),
    ((0,), True, ["cross_entropy_kept"] * 2 + ["mm"] * 2),
])  # fmt: skip
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_frozen_inputs_of_a_total_loss(
    products: Products, reduction: str, needed: tuple[int, ...], chunked: bool, expected: list[str]
) -> None:
    """The logits are made once, and everything from them in the forward pass."""
    tensors = [t.detach().requires_grad_(i in needed) for i, t in enumerate((leaf(M, K), leaf(N, K), scale()))]
    x, weight, rstd = tensors
    losses: list[Tensor] = []

    def forward() -> None:
        losses.append(
            ct.linear_cross_entropy(
                x, weight, TARGET, chunk_rows=5 if chunked else None, reduction=reduction,
                rstd=rstd if 2 in needed else None,
            )
        )  # fmt: skip

    assert products.of(forward) == expected
    assert losses[0].requires_grad == bool(needed)
    if needed:
        assert products.of(losses[0].backward) == []
    assert [t.grad is not None for t in tensors] == [i in needed for i in range(3)]


def test_a_total_loss_keeps_neither_its_input_nor_the_weight() -> None:
    x, weight, rstd = leaf(M, K), leaf(N, K), scale()
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = ct.linear_cross_entropy(x, weight, TARGET, rstd=rstd, chunk_rows=4)
    sizes = sorted(t.nbytes for t in kept if t.dim())
    assert [n for n in sizes if n] == [4 * M, 2 * M * K, 4 * N * K]  # the gradients
    loss.backward()


@pytest.mark.parametrize("missing", ["want_x", "want_weight", "want_rstd"])
def test_a_gradient_that_the_forward_pass_was_not_asked_for(missing: str) -> None:
    op, make, options = OPERATIONS["linear_cross_entropy_total"]
    loss = op(*make(), **options | {missing: False})[0]
    with pytest.raises(RuntimeError, match=f"{missing}=False"):
        loss.backward()


@pytest.mark.parametrize(("needed", "expected"), [
    ((0, 1, 2), ["mm", "mm", "mm", "swiglu_bwd"]),
    ((0,), ["mm", "swiglu_bwd"]),
    ((1,), ["mm", "swiglu_bwd"]),
    ((2,), ["mm"]),
])  # fmt: skip
def test_frozen_inputs_of_an_mlp(products: Products, needed: tuple[int, ...], expected: list[str]) -> None:
    tensors = [leaf(M, K), leaf(2 * N, K), leaf(K, N)]
    assert backward_products(products, ct.swiglu_mlp, tensors, needed) == expected


@pytest.mark.parametrize(("needed", "expected"), [
    (range(6), ["mm"] * 4 + ["residual_rms_bwd", "swiglu_bwd"]),
    ((0, 2), ["mm", "residual_rms_bwd", "swiglu_bwd"]),
    ((2,), ["residual_rms_bwd", "swiglu_bwd"]),
    ((3,), ["residual_rms_bwd", "swiglu_bwd"]),
    ((4,), ["mm", "swiglu_bwd"]),
    ((5,), ["mm"]),
])  # fmt: skip
def test_frozen_inputs_of_a_layer(products: Products, needed: tuple[int, ...], expected: list[str]) -> None:
    assert backward_products(products, ct.llama_mlp, mlp_arguments(), tuple(needed)) == expected


@pytest.mark.parametrize(("needed", "expected"), [
    (range(8), ["mm"] * 5 + ["residual_rms_bwd"] * 2 + ["swiglu_bwd"]),
    ((7,), ["mm"]),
    ((6,), ["residual_rms_bwd"]),
    ((5,), ["mm", "residual_rms_bwd"]),
    ((2,), ["residual_rms_bwd", "residual_rms_bwd", "swiglu_bwd"]),
])  # fmt: skip
def test_frozen_inputs_of_a_span(products: Products, needed: tuple[int, ...], expected: list[str]) -> None:
    tensors = [*mlp_arguments(), vector(K, 1), leaf(N, K), *TABLE]
    assert backward_products(products, lambda *t: ct.llama_span(*t, 16, head_dim=8), tensors, tuple(needed)) == expected


def test_the_same_gradient_with_others_frozen() -> None:
    """The ways that leave a product out give what the full way gives."""
    f = llama.llama_span
    tensors: list[Any] = [*mlp_arguments(), vector(K, 1), leaf(N, K), *TABLE]

    def run(needed: set[int]) -> list[Any]:
        given = [t.detach().requires_grad_(i in needed) if t.is_floating_point() else t for i, t in enumerate(tensors)]
        x2, qkv = f(*given, 16, head_dim=8)
        (x2.float().square().sum() + qkv.float().sum()).backward()
        return [t.grad for t in given]

    every = run(set(range(8)))
    for i in range(8):
        alone = run({i})[i]
        assert relative(alone, every[i].double()) < 4e-3, i


# -- compilation --


def model(x: Tensor, weights: list[Tensor], head: Tensor) -> Tensor:
    """Every operation once."""
    norm, wide, narrow, out = weights
    h, rstd = ct.input_rms(x, norm)
    y = ct.linear_swiglu(h, wide, rstd) + ct.linear_act(x, narrow)
    position = torch.arange(x.shape[0]) % 16
    y = y + ct.linear_rope(h, narrow, COS, SIN, position, 16, rstd, head_dim=8)
    d, h, rstd = ct.residual_rms_linear(y, out, x, norm)
    return ct.linear_cross_entropy(h, head, TARGET[: x.shape[0]], rstd=rstd) + d.float().mean()


def model_arguments(rows: int = M) -> tuple[Tensor, list[Tensor], Tensor]:
    return leaf(rows, K), [vector(K), leaf(2 * N, K), leaf(N, K), leaf(K, N)], leaf(N, K, seed=9)


def gradients_of(f: Callable[..., Tensor], rows: int = M) -> list[Tensor]:
    x, weights, head = model_arguments(rows)
    loss = f(x, weights, head)
    return [loss.detach(), *torch.autograd.grad(loss, [x, *weights, head])]


def test_compiled_whole() -> None:
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for got, expected in zip(gradients_of(compiled), gradients_of(model), strict=True):
        assert torch.equal(got, expected)


def test_compiled_with_a_dynamic_number_of_rows() -> None:
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (9, 7, 4):
        for got, expected in zip(gradients_of(compiled, rows), gradients_of(model, rows), strict=True):
            assert torch.equal(got, expected)


def test_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w, b: ct.linear_act(x * 2, w, b) + 1, fullgraph=True)
    x, w, b = leaf(M, K), leaf(N, K), vector(N)
    got = torch.autograd.grad(compiled(x, w, b).float().sum(), [x, w, b])
    expected = torch.autograd.grad((ct.linear_act(x * 2, w, b) + 1).float().sum(), [x, w, b])
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e)


def test_compiled_blocks_under_autocast() -> None:
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(ct.LlamaBlock(32, 48, 2, 1) for _ in range(2))
    cos, sin = ct.rope_tables(8, 16)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return ct.run_blocks(blocks, x, cos, sin)

    x = normal(2, 5, 32)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    results = []
    for run in (f, compiled):
        y = run(x)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), list(blocks.parameters()))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


# -- precision --


def test_autocast_keeps_f32_parameters() -> None:
    block = ct.LlamaBlock(32, 48, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = block(torch.randn(1, 5, 32), *ct.rope_tables(8, 16))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in block.parameters())


def test_bf16_parameters_with_f32_masters() -> None:
    """Steps below a bf16 parameter's resolution gather in the master weights, and show once they suffice."""
    torch.manual_seed(0)
    head = ct.LinearCrossEntropy(K, N, dtype=torch.bfloat16)
    master = head.weight.detach().float().clone().requires_grad_()
    optimizer = torch.optim.SGD([master], lr=1e-2)
    x, losses = normal(M, K), []
    for _ in range(60):
        loss = head(x, TARGET)
        (gradient,) = torch.autograd.grad(loss, [head.weight])
        assert gradient.dtype == torch.bfloat16
        master.grad = gradient.float()
        optimizer.step()
        with torch.no_grad():
            head.weight.copy_(master)
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    assert not torch.equal(master.detach(), head.weight.float())


# -- autograd --


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    expected = gradients_of(model)
    got = gradients_of(lambda x, w, head: checkpoint(lambda x: model(x, w, head), x, use_reentrant=False))
    if reentrant:  # which supports backward(), and not autograd.grad()
        x, weights, head = model_arguments()
        checkpoint(model, x, weights, head, use_reentrant=True).backward()
        got = [expected[0], *(t.grad for t in [x, *weights, head])]  # type: ignore[misc]
    for g, e in zip(got, expected, strict=True):
        assert torch.equal(g, e)


def test_two_backward_passes_and_two_calls() -> None:
    x, weights, head = model_arguments()
    inputs = [x, *weights, head]
    loss = model(x, weights, head)
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, inputs)
    (model(x, weights, head) + model(x, weights, head)).backward()
    for t, g, again in zip(inputs, first, second, strict=True):
        assert torch.equal(g, again)
        assert t.grad is not None
        assert relative(t.grad, 2 * g.double()) < 4e-3


def test_output_gradients_of_any_layout() -> None:
    x, w = leaf(M, K), leaf(N, K)
    y = ct.linear_swiglu(x, w)
    upstream = normal(N // 2, M)
    for layout in (upstream.T, torch.ones((), dtype=torch.bfloat16).expand(M, N // 2)):
        (got,) = torch.autograd.grad(y, x, layout, retain_graph=True)
        (expected,) = torch.autograd.grad(y, x, layout.contiguous(), retain_graph=True)
        assert torch.equal(got, expected)


def test_nothing_is_kept_without_a_gradient() -> None:
    x, w = leaf(M, K), leaf(N, K)
    _, z, _ = act.forward_op(x, w, None, activation="gelu", keep=False)
    assert z.numel() == 0
    with torch.no_grad():
        assert not calls.any_grad(x, w)
    y, *_ = act.forward_op(x, w, None, activation="gelu", keep=False)
    with pytest.raises(RuntimeError, match="keep=False"):
        y.sum().backward()


# -- the loss: a total whose gradients are made with it --


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0}], ids=["no", "all"])
@pytest.mark.parametrize("normed", [False, True])
def test_the_loss_that_has_a_gradient(normed: bool, options: dict[str, float]) -> None:
    """It is that of the logits rounded to f16, whatever the chunks; without a gradient, of the logits by rows."""
    x, w, rstd = leaf(M, K), leaf(N, K), scale() if normed else None
    z = F.linear(x.detach().double(), w.detach().double())
    z = (z if rstd is None else z * rstd.detach()[:, None]).to(torch.float16).double()
    cap = options.get("softcap", 0.0)
    z = cap * torch.tanh(z / cap) if cap else z
    smooth, zeta = options.get("label_smoothing", 0.0), options.get("z_loss", 0.0)
    expected = F.cross_entropy(z, TARGET, label_smoothing=smooth, reduction="none")
    expected = expected + torch.where(TARGET == -100, 0.0, zeta * z.logsumexp(1) ** 2)
    rows = ct.linear_cross_entropy(x, w, TARGET, rstd=rstd, reduction="none", **options).detach()
    for reduction, count in (("sum", 1), ("mean", M - 1)):
        given: dict[str, Any] = {"rstd": rstd, "reduction": reduction, **options}
        whole = ct.linear_cross_entropy(x, w, TARGET, **given)
        assert torch.equal(whole, ct.linear_cross_entropy(x, w, TARGET, chunk_rows=4, **given))
        torch.testing.assert_close(whole.double(), expected.sum() / count, rtol=1e-6, atol=0)
        with torch.no_grad():
            plain = ct.linear_cross_entropy(x, w, TARGET, **given)
        assert torch.equal(plain, rows.sum() / count)
        assert abs(plain - whole) <= 2**-12 * z.abs().max() * (M if reduction == "sum" else 1) * 1.1


@pytest.mark.parametrize("chunk_rows", [None, 4])
def test_each_gradient_of_a_loss_is_its_own(chunk_rows: int | None) -> None:
    """What is kept is not touched: a second output gradient has its own, and the first one again what it had."""
    inputs = [leaf(M, K), leaf(N, K), scale()]
    x, w, rstd = inputs
    loss = ct.linear_cross_entropy(x, w, TARGET, rstd=rstd, chunk_rows=chunk_rows)
    one, two, again = (
        torch.autograd.grad(loss, inputs, torch.tensor(upstream), retain_graph=True) for upstream in (1.0, 2.0, 1.0)
    )
    for a, b, c in zip(one, two, again, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(2 * a, b)
        assert a.data_ptr() != c.data_ptr()
    batched = torch.autograd.grad(loss, inputs, torch.tensor([1.0, 2.0]), is_grads_batched=True)
    for a, b, both in zip(one, two, batched, strict=True):
        assert torch.equal(both, torch.stack([a, b]))


def test_a_compiled_loss_in_one_chunk_and_in_several() -> None:
    """The weight's gradient is kept in bf16 or in f32, as the number of rows asks."""

    def f(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        return ct.linear_cross_entropy(x, w, target, chunk_rows=5)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (9, 4, 8):
        x, w = leaf(rows, K), leaf(N, K)
        results = [(y, *torch.autograd.grad(y, [x, w])) for y in (g(x, w, TARGET[:rows]) for g in (f, compiled))]
        assert all(map(torch.equal, *results))


@pytest.mark.parametrize("kinds", [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16),
                                   (torch.float32, torch.float16), (torch.float16, torch.float16)])  # fmt: skip
def test_scaled_rounds_once(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    """The factor is not rounded to a narrow type first, nor the product."""
    read, stored = kinds
    x, factor = normal(40, 30, dtype=read), torch.tensor(1 / 3)
    got = cross_entropy_total.scaled_op(x.T, factor, dtype=stored)
    assert got.is_contiguous()
    assert torch.equal(got, (x.T.double() * factor.double()).float().to(stored))


@pytest.mark.parametrize("chunk_rows", [None, 4])
def test_the_loss_under_autocast(chunk_rows: int | None) -> None:
    """Of f32 parameters: the gradients are f32, and those of the rounded operands."""
    x, w = leaf(M, K, dtype=torch.float32), leaf(N, K, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = ct.linear_cross_entropy(x, w, TARGET, chunk_rows=chunk_rows)
    rounded = [t.detach().bfloat16().requires_grad_() for t in (x, w)]
    plain = ct.linear_cross_entropy(*rounded, TARGET, chunk_rows=chunk_rows)
    assert torch.equal(loss, plain)
    for got, expected in zip(
        torch.autograd.grad(loss, [x, w]), torch.autograd.grad(plain, rounded), strict=True
    ):  # fmt: skip
        assert got.dtype == torch.float32
        assert torch.equal(got, expected.float())


# -- the loss's memory --


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk_rows", [1, 4, 9, 100])
def test_chunks_of_the_loss(monkeypatch: pytest.MonkeyPatch, chunk_rows: int, reduction: str) -> None:
    """No more rows of logits than a chunk exist at a time, and the gradient does not depend on it."""
    sizes: list[int] = []
    alive: list[weakref.ref[Tensor]] = []
    run = calls.run

    def watching(file: str, name: str, outputs: Any, **arguments: Any) -> Any:
        if file.startswith("cross_entropy") and not name.endswith("map"):
            assert all(t() is None for t in alive)
        out = run(file, name, outputs, **arguments)
        made = [x for x in out.values() if x.dim() == 2 and x.shape[1] == N]
        places = {arguments["x"].data_ptr() if "x" in arguments else x.data_ptr() for x in made}
        assert all(x.data_ptr() in places for x in made)
        alive.extend(map(weakref.ref, made))
        sizes.extend(x.shape[0] for x in made)
        return out

    def gradients(rows: int) -> tuple[Tensor, ...]:
        loss = ct.linear_cross_entropy(x, w, TARGET, chunk_rows=rows, reduction=reduction)
        return torch.autograd.grad(loss, [x, w], torch.ones_like(loss))

    x, w = leaf(M, K), leaf(N, K)
    whole = gradients(M)
    monkeypatch.setattr(calls, "run", watching)
    parts = gradients(chunk_rows)
    assert max(sizes) == min(chunk_rows, M)
    assert len(sizes) == -(-M // chunk_rows) * (1 if reduction == "none" else 2)  # the logits, and da over them
    assert torch.equal(parts[0], whole[0])
    assert relative(parts[1], whole[1].double()) < 4e-3


def test_default_chunk() -> None:
    for columns in (256, 32768, 128256):
        rows = cross_entropy.default_chunk(columns)
        assert rows % 128 == 0
        assert rows * columns * 2 <= cross_entropy.CHUNK_BYTES < (rows + 128) * columns * 2
    assert cross_entropy.default_chunk(1 << 40) == 128
