"""What has no derivative says so: the second one, and forward mode. Neither is left out unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import normal
from test_torch_modes import (
    COS,
    OPERATIONS,
    POSITION,
    SIN,
    TABLE,
    TARGET,
    K,
    M,
    N,
    gradients_of,
    leaf,
    mlp_arguments,
    model,
    model_arguments,
    scale,
    vector,
)  # fmt: skip
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import coda_lang.torch as ct

REFUSED = "has no second derivative"


def with_gradients(arguments: list[Any], needed: list[int]) -> list[Any]:
    """The same arguments as new leaves; only those at `needed` require a gradient."""
    return [
        t.detach().requires_grad_(i in needed) if isinstance(t, Tensor) and t.is_floating_point() else t
        for i, t in enumerate(arguments)
    ]


def requiring(arguments: list[Any]) -> list[int]:
    return [i for i, t in enumerate(arguments) if isinstance(t, Tensor) and t.requires_grad]


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", [n for n, (_, make, _) in OPERATIONS.items() if requiring(make())])
def test_no_second_derivative(name: str, square: bool) -> None:
    """From every gradient to every input, for one input alone and for all, whether or not the loss is linear."""
    op, make, options = OPERATIONS[name]
    every = requiring(make())
    for needed in [*([i] for i in every), every]:
        arguments = with_gradients(make(), needed)
        outputs = op(*arguments, **options)
        leaves = [arguments[i] for i in needed]
        used = [y.float() for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y.requires_grad]
        loss = torch.stack([(y.square() if square else y).sum() for y in used]).sum()
        for g in torch.autograd.grad(loss, leaves, create_graph=True):
            assert g.requires_grad
            for x in leaves:
                with pytest.raises(RuntimeError, match=REFUSED):
                    torch.autograd.grad(g.float().sum(), x, retain_graph=True, allow_unused=True)


def test_a_graph_of_the_gradient_changes_no_number() -> None:
    x, weights, head = model_arguments()
    inputs = [x, *weights, head]
    first = torch.autograd.grad(model(x, weights, head), inputs, create_graph=True)
    for got, expected in zip(first, gradients_of(model)[1:], strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("reentrant", [False, None])
def test_no_gradient_penalty_through_a_layer(reentrant: bool | None) -> None:
    """Of the input of two blocks, checkpointed or not."""
    blocks = [ct.LlamaBlock(32, 48, 2, 1, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2)]

    def run(x: Tensor) -> Tensor:
        return ct.run_blocks(blocks, x, *ct.rope_tables(8, 16))

    x = leaf(2, 5, 32)
    y = run(x) if reentrant is None else checkpoint(run, x, use_reentrant=reentrant)
    (g,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        (y.float().mean() + g.float().square().sum()).backward()


@pytest.mark.parametrize("frozen", [False, True])
def test_no_second_derivative_of_a_compiled_function(frozen: bool) -> None:
    """There the refusal is PyTorch's own."""
    own = torch.compile(torch.exp, backend="aot_eager")
    (g,) = torch.autograd.grad(own(t := leaf(M)).sum(), t, create_graph=True)
    if not g.requires_grad:
        pytest.skip(f"torch {torch.__version__} drops the second derivative of every compiled function")
    f = torch.compile(lambda x, w: ct.linear_act(x, w), fullgraph=True, backend="aot_eager")
    x, w = leaf(M, K), leaf(N, K).requires_grad_(not frozen)
    (g,) = torch.autograd.grad(f(x, w).float().sum(), x, create_graph=True)
    assert g.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        g.float().sum().backward()


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "linear_act": (ct.linear_act, lambda: [leaf(M, K), leaf(N, K), vector(N)]),
    "input_rms": (ct.input_rms, lambda: [leaf(M, K), vector(K)]),
    "residual_rms_linear": (ct.residual_rms_linear, lambda: [leaf(M, K), leaf(N, K), leaf(M, N), vector(N)]),
    "linear_swiglu": (ct.linear_swiglu, lambda: [leaf(M, K), leaf(N, K), scale()]),
    "linear_swiglu with bias": (
        lambda x, w, b: ct.linear_swiglu(x, w, bias=b), lambda: [leaf(M, K), leaf(N, K), vector(N)],
    ),
    "swiglu_mlp": (ct.swiglu_mlp, lambda: [leaf(M, K), leaf(2 * N, K), leaf(K, N)]),
    "linear_rope": (
        lambda x, w, r: ct.linear_rope(x, w, COS, SIN, POSITION, 16, r, head_dim=8),
        lambda: [leaf(M, K), leaf(N, K), scale()],
    ),
    "linear_cross_entropy": (
        lambda x, w, r: ct.linear_cross_entropy(x, w, TARGET, rstd=r), lambda: [leaf(M, K), leaf(N, K), scale()],
    ),
    "linear_cross_entropy by rows": (
        lambda x, w, r: ct.linear_cross_entropy(x, w, TARGET, rstd=r, reduction="none"),
        lambda: [leaf(M, K), leaf(N, K), scale()],
    ),
    "rms_linear_rope": (
        lambda x, n, w: ct.rms_linear_rope(x, n, w, *TABLE, 16, head_dim=8),
        lambda: [leaf(M, K), vector(K), leaf(N, K)],
    ),
    "llama_mlp": (ct.llama_mlp, mlp_arguments),
    "llama_span": (
        lambda *t: ct.llama_span(*t, *TABLE, 16, head_dim=8), lambda: [*mlp_arguments(), vector(K, 1), leaf(N, K)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_forward_mode(name: str) -> None:
    """A tangent of any input is refused, by dual tensors and by torch.func; without one, nothing is."""
    f, make = FUNCTIONS[name]
    arguments = [t.detach() for t in make()]
    message = f"{name.partition(' ')[0]} has no forward-mode derivative"
    for i, x in enumerate(arguments):

        def of_one(x: Tensor, i: int = i) -> Any:
            return f(*arguments[:i], x, *arguments[i + 1 :])

        with forward_ad.dual_level():
            of_one(x)
            with pytest.raises(RuntimeError, match=message):
                of_one(forward_ad.make_dual(x, torch.ones_like(x)))
        with pytest.raises(RuntimeError, match=message):
            torch.func.jvp(of_one, (x,), (torch.ones_like(x),))


def test_functions_of_torch_func_take_no_gradient() -> None:
    """PyTorch itself refuses: `torch.library.custom_op` has no rule for them."""
    w = normal(N, K)
    for f in (lambda x: ct.linear_act(x, w).float().sum(), lambda x: ct.linear_cross_entropy(x, w, TARGET)):
        with pytest.raises(RuntimeError, match="functorch transforms"):
            torch.func.grad(f)(normal(M, K))
