"""CUDA tensors: every operation against the interpreter's result, and a step captured in a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles import normal, relative
from test_torch_modes import OPERATIONS
from torch import Tensor

import coda_lang.torch as ct

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
