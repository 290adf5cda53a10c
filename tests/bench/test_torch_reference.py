"""The PyTorch function of every program, on the CPU, within the bounds that the program's exact arithmetic gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coda_lang as coda
from coda_lang import arrays
from coda_lang.bench.torch_ops import TORCH
from coda_lang.bench.torch_reference import Reference, reference
from coda_lang.call import Call, Caller
from coda_lang.compare import compare
from coda_lang.data import draw
from coda_lang.ir.ops import OPS
from coda_lang.ir.program import Kernel

PROGRAMS = Path(__file__).parents[2] / "programs"
SIZES = {"M": 24, "N": 48, "K": 16, "H": 3, "D": 16, "P": 10}


def kernels() -> Iterator[Kernel]:
    for path in sorted(PROGRAMS.glob("*.coda")):
        for program in coda.load(path).values():
            if isinstance(program.ir, Kernel) and program.ir.span.source.path == str(path):
                yield program.ir


KERNELS = {k.name: k for k in kernels()}


def tensors(given: dict[str, Any]) -> dict[str, Any]:
    def one(x: Any) -> Any:
        return arrays.to_torch(np.ascontiguousarray(x).reshape(x.shape)) if isinstance(x, np.ndarray) else x

    return {n: one(x) for n, x in given.items()}


def call_of(kernel: Kernel, whole: bool, **changes: Any) -> tuple[Call[Kernel], dict[str, Any]]:
    """A call with all options or none, and its arguments."""
    optional = [p.name for p in kernel.params if p.default is not None] if whole else []
    sizes = {n: x for n, x in SIZES.items() if n in kernel.axes and not (n == "N" and kernel.splits)}
    given = draw(kernel, sizes=sizes, optional=optional).arguments | changes
    own = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in given.items()}
    return Caller(kernel).call(own, [o.name for o in kernel.outputs] if whole else None, None), given


def results(
    call: Call[Kernel], made: Reference, given: dict[str, Any]
) -> tuple[dict[str, np.ndarray[Any, Any]], tuple[int, int]]:
    """The function's outputs, with a tile as large as the whole, so that each partial is one."""
    rows, cols = call.kernel.rows, call.kernel.cols
    tile = (128, 256)
    if rows is not None and cols is not None:
        tile = call.binding.length(rows), -(-call.binding.length(cols) // 2) * 2
    found = made(tensors(given))
    shapes = {n: call.binding.shape(call.kernel.target(n), tile) for n in found}
    return {n: arrays.to_numpy(x.contiguous()).reshape(shapes[n]) for n, x in found.items()}, tile


@pytest.mark.parametrize("whole", [False, True], ids=["least", "whole"])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_program_within_its_bounds(name: str, whole: bool) -> None:
    call, given = call_of(KERNELS[name], whole)
    made = reference(call.binding, exact_product=True)
    found, tile = results(call, made, given)
    assert set(found) == set(call.order)
    for one in compare(call.kernel, given, found, tile):
        assert one.ok, f"{one}\n{made.source}"


@pytest.mark.parametrize("name", sorted(n for n, k in KERNELS.items() if k.product is not None))
def test_the_rounded_product_is_the_same_where_it_is_exact(name: str) -> None:
    """Operands of small integers have products that bf16 holds."""
    kernel = KERNELS[name]
    _, drawn = call_of(kernel, False)
    rng = np.random.default_rng(0)
    assert kernel.product is not None
    operands = (kernel.product.a, kernel.product.b)
    integers = {n: rng.integers(-1, 2, drawn[n].shape).astype(drawn[n].dtype) for n in operands}
    call, given = call_of(kernel, False, **integers)
    plain, _ = results(call, reference(call.binding), given)
    exact, _ = results(call, reference(call.binding, exact_product=True), given)
    for n, x in plain.items():
        np.testing.assert_array_equal(x.astype(np.float32), exact[n].astype(np.float32), n)


def test_the_plain_product_is_stored_as_pytorch_leaves_it() -> None:
    call, given = call_of(KERNELS["linear_dx"], False)
    made = reference(call.binding)
    (d,) = made(tensors(given)).values()
    t = tensors(given)
    assert torch.equal(d, t["a"] @ t["b"])
    assert "float" not in made.source.split("# d")[1]


@pytest.mark.parametrize("name", ["linear", "rmsnorm_swiglu", "rope_position", "cross_entropy", "residual_layernorm",
                                  "residual_rms_bwd", "swiglu_bwd", "qk_norm", "quantize", "qk_norm_rope_map",
                                  "loss_from_lse"])  # fmt: skip
def test_dynamo_traces_it_in_one_graph(name: str) -> None:
    call, given = call_of(KERNELS[name], False)
    made = reference(call.binding)
    torch._dynamo.reset()
    traced = torch.compile(made.function, backend="eager", dynamic=False, fullgraph=True)
    positional = made.positional(tensors(given))
    for x, y in zip(traced(*positional), made.function(*positional), strict=True):
        assert torch.equal(x.float().nan_to_num(), y.float().nan_to_num())


def test_every_map_has_its_line() -> None:
    special = {"even", "odd", "unpairs", "round"}
    assert {n for n, op in OPS.items() if op.cls == 1} - special == set(TORCH)


def test_names_that_python_does_not_have() -> None:
    text = """map f<M, N>(for: f32[M, N], β: f32[N], class: f32, lambda: i64[M, N]) -> (def: f32[M, N], is: i64[M, N]) {
    def <- for * β + class + 2.0 * f32(not (for > 0.0))
    is <- idiv(lambda, 3) % 2 + row() - col()
}"""
    kernel = coda.loads(text)["f"].ir
    assert isinstance(kernel, Kernel)
    given = draw(kernel, sizes={"M": 5, "N": 6}).arguments
    call = Caller(kernel).call(given, None, None)
    found, _ = results(call, reference(call.binding), given)
    expected = coda.loads(text)["f"].interpret(**given)
    np.testing.assert_allclose(found["def"], expected["def"], rtol=1e-6)
    np.testing.assert_array_equal(found["is"], expected["is"])


def test_the_source_is_for_reading() -> None:
    call, _ = call_of(KERNELS["rmsnorm_swiglu"], False)
    lines = reference(call.binding).source.splitlines()
    assert lines[0] == "def reference(x0, x1, x2):"
    assert "    # x0: a T[M, K]" in lines
    assert "    product = x0 @ x1.T" in lines
    assert "    v0 = product.float()" in lines
    assert any(line == "    # z" for line in lines)
