"""CUDA tensors: every operation against the interpreter's result, and a step captured in a CUDA graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import normal, relative
from test_torch_modes import OPERATIONS
from torch import Tensor

import coda_lang.torch as ct
from coda_lang.backend_cutlass import nvrtc
from coda_lang.torch import kept, programs

pytestmark = pytest.mark.gpu


def results(op: Any, arguments: list[Any], options: dict[str, Any]) -> list[Tensor]:
    """The outputs, and the gradients of their sum of squares with respect to what requires one."""
    outputs = op(*arguments, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    leaves = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
    if not leaves:
        return list(outputs)
    loss = sum(y.float().square().sum() for y in outputs if y.requires_grad)
    assert isinstance(loss, Tensor)
    return [*(y.detach() for y in outputs), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_as_the_interpreter(name: str) -> None:
    op, make, options = OPERATIONS[name]
    arguments = make()
    there = [
        t.detach().cuda().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in arguments
    ]  # fmt: skip
    for got, expected in zip(results(op, there, options), results(op, arguments, options), strict=True):
        assert got.device.type == "cuda"
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if expected.numel():
            assert relative(got.cpu(), expected.double()) < 1e-2


@pytest.mark.parametrize(("rows", "width"), [(300, 256), (129, 264)])
@pytest.mark.parametrize("op", [ct.swiglu_mlp, ct.llama_mlp])
def test_a_gradient_in_the_place_of_what_was_kept(
    op: Any, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(rows, 128), (2 * width, 128), (128, width)]
    if op is ct.llama_mlp:
        shapes = [(rows, 128), (128, 128), (rows, 128), (128,), *shapes[1:]]
    found = []
    for large in (0, 1 << 62):
        monkeypatch.setattr(kept, "LARGE", large)
        inputs = [normal(*s, scale=0.3, seed=i).cuda().requires_grad_() for i, s in enumerate(shapes)]
        found.append(torch.autograd.grad(op(*inputs).float().square().sum(), inputs))
    assert all(map(torch.equal, *found))


def test_what_only_the_graph_held_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)
    shapes = [(300, 128), (128, 128), (300, 128), (128,), (512, 128), (128, 256)]
    inputs = [normal(*s, scale=0.3, seed=i).cuda().requires_grad_() for i, s in enumerate(shapes)]
    left: list[int] = []
    real = kept.give_back

    def give_back(tensor: Tensor, *others: Tensor | None) -> None:
        real(tensor, *others)
        left.append(tensor.untyped_storage().size())

    monkeypatch.setattr(kept, "give_back", give_back)
    y = ct.llama_mlp(*inputs)
    for again in (True, False):
        y.sum().backward(retain_graph=again)
    assert left == [300 * 128 * 2, 300 * 512 * 2, 0, 0]  # x1 and z


def test_a_step_in_a_cuda_graph() -> None:
    """Replayed on other inputs, it gives what eager calls give, to the bit."""
    torch.manual_seed(0)
    blocks = [ct.LlamaBlock(128, 256, 4, 2, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    head = ct.LinearCrossEntropy(128, 512, device="cuda", dtype=torch.bfloat16)
    tables = ct.rope_tables(64, 32, device="cuda")
    parameters = [p for module in (*blocks, head) for p in module.parameters()]
    x = normal(2, 64, 128).cuda().requires_grad_()
    target = torch.arange(128, device="cuda").view(2, 64)

    def step() -> list[Tensor]:
        loss = head(ct.run_blocks(blocks, x, *tables), target)
        return [loss, *torch.autograd.grad(loss, [x, *parameters])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(normal(2, 64, 128, seed=1))
    graph.replay()
    for got, expected in zip(captured, step(), strict=True):
        assert torch.equal(got, expected)


def test_positions_outside_the_table_are_nan() -> None:
    """In their own rows, and without waiting for them."""
    x, weight = normal(9, 32).cuda(), normal(48, 32).cuda()
    position = torch.arange(9, device="cuda")
    position[2], position[5] = -1, 16
    cos, sin = ct.rope_tables(16, 8, device="cuda")
    y = ct.rms_linear_rope(x, torch.ones(32, device="cuda"), weight, cos, sin, position, 32, head_dim=8)
    wrong = [i in (2, 5) for i in range(9)]
    assert y[:, :32].isnan().all(-1).tolist() == wrong
    assert y[:, :32].isnan().any(-1).tolist() == wrong
    assert y[:, 32:].isfinite().all()


def test_precompile_leaves_nothing_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))
    programs.module.cache_clear()  # no kernel is loaded yet
    block = ct.LlamaBlock(64, 96, 2, 1, device="cuda", dtype=torch.bfloat16)
    head = ct.LinearCrossEntropy(64, 256, device="cuda", dtype=torch.bfloat16)
    tables = ct.rope_tables(32, 32, device="cuda")
    x, target = normal(2, 32, 64).cuda(), torch.arange(64, device="cuda").view(2, 32)

    def step() -> Tensor:
        loss = head(block(x, *tables), target)
        loss.backward()
        return loss

    assert ct.precompile(step) > 10

    def refuse(*_: Any) -> Any:
        raise AssertionError("a kernel was compiled")

    monkeypatch.setattr(nvrtc, "load", refuse)
    assert step().isfinite()
