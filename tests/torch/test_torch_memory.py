"""What a backward pass holds at once: what is large goes early, and z's gradient may take z's place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import normal
from test_torch_modes import TABLE, K, M, N, leaf, mlp_arguments, vector
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import coda_lang.torch as ct
from coda_lang.torch import calls, kept, residual_rms, swiglu
from coda_lang.torch.rehearsal import kernels

Made = tuple[Callable[..., Any], Callable[[], list[Tensor]]]
FUSED: dict[str, Made] = {
    "swiglu_mlp": (ct.swiglu_mlp, lambda: [leaf(M, K), leaf(2 * N, K, seed=1), leaf(K, N, seed=2)]),
    "llama_mlp": (ct.llama_mlp, mlp_arguments),
    "llama_span": (
        lambda *t: ct.llama_span(*t, *TABLE, 16, head_dim=8)[0], lambda: [*mlp_arguments(), vector(K, 1), leaf(N, K)],
    ),
}  # fmt: skip
GIVEN_BACK = {"swiglu_mlp": 0, "llama_mlp": 2, "llama_span": 2}  # z and x1 of each layer, once they are used up


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The z that were overwritten; nothing is too small for it."""
    found: list[Tensor] = []
    real = swiglu.overwriting_grad_op

    def noted(dout: Tensor, weight: Tensor, z: Tensor, **options: Any) -> Any:
        found.append(z)
        return real(dout, weight, z, **options)

    monkeypatch.setattr(kept, "LARGE", 0)
    monkeypatch.setattr(swiglu, "overwriting_grad_op", noted)
    return found


def gradients(f: Callable[..., Tensor], arguments: list[Tensor], **options: Any) -> list[Tensor]:
    y = f(*arguments)
    needed = [t for t in arguments if t.requires_grad]
    return list(torch.autograd.grad(y, needed, normal(*y.shape, seed=9).to(y.dtype), allow_unused=True, **options))


def equal(got: list[Tensor], want: list[Tensor]) -> bool:
    return all(g is w is None or torch.equal(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("name", FUSED)
def test_the_gradients_are_those_that_leave_all_alone(
    name: str, overwritten: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    f, made = FUSED[name]
    found = gradients(f, made())
    assert len(overwritten) == 1
    monkeypatch.setattr(kept, "LARGE", 1 << 62)
    assert equal(found, gradients(f, made()))
    assert len(overwritten) == 1


@pytest.mark.parametrize("name", FUSED)
def test_a_graph_that_is_kept_can_be_used_again(name: str, overwritten: list[Tensor]) -> None:
    f, made = FUSED[name]
    arguments = made()
    y = f(*arguments)
    needed = [t for t in arguments if t.requires_grad]
    runs = [
        list(torch.autograd.grad(y, needed, torch.ones_like(y), retain_graph=kept, allow_unused=True))
        for kept in (True, True, False)
    ]
    assert len(overwritten) == 1
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])


def test_what_was_kept_for_a_second_derivative_stays(overwritten: list[Tensor]) -> None:
    f, made = FUSED["llama_mlp"]
    gradients(f, made(), create_graph=True)
    assert not overwritten


def test_batched_gradients_and_compiled_ones_leave_all_alone(overwritten: list[Tensor]) -> None:
    f, made = FUSED["swiglu_mlp"]
    want = gradients(f, made())
    overwritten.clear()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert equal(gradients(compiled, made()), want)
    arguments = made()
    y = f(*arguments)
    each = torch.stack([torch.ones_like(y), normal(*y.shape, seed=9).to(y.dtype)])
    batched = torch.autograd.grad(y, arguments, each, is_grads_batched=True)
    assert equal([g[1] for g in batched], want)
    assert not overwritten


def test_checkpoints_overwrite_what_they_made_again(overwritten: list[Tensor]) -> None:
    f, made = FUSED["llama_mlp"]
    want = gradients(f, made())
    assert equal(gradients(lambda *t: checkpoint(f, *t, use_reentrant=False), made()), want)
    assert len(overwritten) == 2


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each tensor that could be given back, whether it was; what was is NaN from then on."""
    found: list[bool] = []
    real = kept.give_back

    def give_back(tensor: Tensor, *others: Tensor | None) -> None:
        used = kept.used_up(tensor, *others)
        found.append(used)
        real(tensor, *others)
        if used:
            tensor.data.fill_(torch.nan)

    monkeypatch.setattr(kept, "LARGE", 0)
    monkeypatch.setattr(kept, "give_back", give_back)
    return found


@pytest.mark.parametrize("name", FUSED)
def test_what_only_the_graph_held_is_given_back(name: str, given_back: list[bool]) -> None:
    f, made = FUSED[name]
    y = f(*made())
    y.sum().backward(retain_graph=True)
    assert given_back == [False] * GIVEN_BACK[name]
    y.sum().backward()
    assert given_back == [False] * GIVEN_BACK[name] + [True] * GIVEN_BACK[name]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_what_was_given_back_is_not_read(
    name: str, reentrant: bool | None, given_back: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    f, made = FUSED[name]
    run = f if reentrant is None else lambda *t: checkpoint(f, *t, use_reentrant=reentrant)

    def summed() -> list[Tensor | None]:
        arguments = made()
        run(*arguments).sum().backward()
        return [t.grad for t in arguments]

    found = summed()
    assert given_back == [True] * GIVEN_BACK[name]
    monkeypatch.setattr(kept, "LARGE", 1 << 62)
    assert equal(found, summed())


@pytest.mark.parametrize("name", FUSED)
def test_what_a_hook_has_seen_stays(name: str, given_back: list[bool], overwritten: list[Tensor]) -> None:
    """It may be the hook's memory."""
    f, made = FUSED[name]
    seen: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        seen.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = f(*made())
    before = [t.clone() for t in seen]
    y.sum().backward()
    assert all(torch.equal(t, was) for t, was in zip(seen, before, strict=True))
    assert not overwritten
    assert not given_back


@pytest.mark.parametrize("name", ["llama_mlp", "llama_span"])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_pass_that_failed_is_not_repeated_on_what_it_left(
    name: str, failing: int, given_back: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory runs out in one of its products."""
    f, made = FUSED[name]
    real, calls_made = calls.weight_gradient, []

    def weight_gradient(dz: Tensor, x: Tensor) -> Tensor:
        calls_made.append(1)
        if len(calls_made) == failing:
            raise MemoryError
        return real(dz, x)

    monkeypatch.setattr(calls, "weight_gradient", weight_gradient)
    y = f(*made())
    with pytest.raises(MemoryError):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_memory_that_can_go_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)
    x = torch.ones(4, requires_grad=True)
    sizes: list[int] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.inner = x * 2
            return x * 3

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            kept.give_back(ctx.inner)
            sizes.append(ctx.inner.untyped_storage().size())
            return dy

    y = Keeps.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert sizes == [16, 0]


def test_what_is_small_stays(monkeypatch: pytest.MonkeyPatch, overwritten: list[Tensor]) -> None:
    """A call into a given array costs the host more than one that makes its own."""
    monkeypatch.undo()
    used: list[bool] = []
    monkeypatch.setattr(kept, "give_back", lambda t, *others: used.append(kept.used_up(t, *others)))
    f, made = FUSED["llama_mlp"]
    f(*made()).sum().backward()
    assert used == [False, False]
    assert not overwritten


def test_a_rehearsal_finds_the_same_kernels(overwritten: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    f, made = FUSED["llama_mlp"]
    found = {u.source for u in kernels(lambda: gradients(f, made()))}
    assert overwritten
    monkeypatch.setattr(kept, "LARGE", 1 << 62)
    assert found == {u.source for u in kernels(lambda: gradients(f, made()))}


def test_the_activation_is_gone_when_the_next_product_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """z, its gradient and the activation together are most of a layer's peak memory."""
    made: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []
    fused, following = swiglu.linear_grad_op, residual_rms.linear_grad_op

    def first(*arguments: Any, **options: Any) -> Any:
        results = fused(*arguments, **options)
        made.append(weakref.ref(results[2]))
        return results

    def second(*arguments: Any, **options: Any) -> Any:
        gone.append(made[-1]() is None)
        return following(*arguments, **options)

    monkeypatch.setattr(swiglu, "linear_grad_op", first)
    monkeypatch.setattr(residual_rms, "linear_grad_op", second)
    y = ct.llama_mlp(*mlp_arguments())
    y.sum().backward()
    assert gone == [True]
