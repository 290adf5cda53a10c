"""Kernels with more tiles than shared memory holds: the rest is moved by plain loads and stores."""

from __future__ import annotations

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.abi import Emitted, TensorMap
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.config import SHARED_LIMIT, rejection
from coda_lang.backend_cutlass.default import default
from coda_lang.backend_cutlass.emit import emit, footprint
from coda_lang.backend_cutlass.problem import Problem
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel


def many(kind: str, inputs: int, updated: int, outputs: int, dtype: str = "f32") -> Kernel:
    """A program with so many tiles that are read, updated in place, and written."""
    a, b = ["a: bf16[M, K]", "b: bf16[N, K]"] if kind == "kernel" else ["a: f32[M]", "b: f32[N]"]
    tiles = [f"x{i}" for i in range(inputs)] + [f"inout w{i}" for i in range(updated)]
    params = [a, b, *(f"{tile}: {dtype}[M, N]" for tile in tiles)]
    stores = [*(f"w{i} +<- s * {i}.5" for i in range(updated)), *(f"o{i} <- s * {i}.25" for i in range(outputs))]
    total = " + ".join(["a @ b.T" if kind == "kernel" else "a * b", *(f"x{i}" for i in range(inputs))])
    axes = "M, N, K" if kind == "kernel" else "M, N"
    written = ", ".join(f"o{i}: {dtype}[M, N]" for i in range(outputs))
    body = "\n    ".join([f"s = {total}", *stores])
    text = f"{kind} many<{axes}>({', '.join(params)}) -> ({written}) {{\n    {body}\n}}"
    kernel = coda.loads(text)["many"].ir
    assert isinstance(kernel, Kernel)
    return specialise(kernel, frozenset(p.name for p in kernel.params), frozenset(o.name for o in kernel.outputs))


def by_tma(e: Emitted) -> list[str]:
    maps = [f for f in e.fields if isinstance(f.source, TensorMap) and not f.name.startswith("operand_")]
    return [f.source.tensor for f in maps if isinstance(f.source, TensorMap)]


COUNTS = [(9, 0, 1), (0, 6, 0), (0, 6, 1), (30, 0, 3), (5, 5, 5), (0, 20, 20), (8, 0, 40), (40, 40, 40)]


@pytest.mark.parametrize(("inputs", "updated", "outputs"), COUNTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8e4m3"])
@pytest.mark.parametrize("kind", ["kernel", "map"])
def test_a_program_fits_whatever_it_reads_and_writes(
    kind: str, inputs: int, updated: int, outputs: int, dtype: str
) -> None:
    kernel = many(kind, inputs, updated, outputs, dtype)
    e = emit(kernel, {})
    assert e.shared_bytes <= SHARED_LIMIT
    moved = {str(getattr(f.source, "tensor", "")) for f in e.fields}
    assert moved >= {f"x{i}" for i in range(inputs)} | {f"w{i}" for i in range(updated)}
    need = footprint(kernel, {})
    for shape in ((512, 512), (8192, 8192)):
        assert kernel.product is None or rejection(default(Problem(*shape, 4096, need)), need) is None


def test_as_many_loads_as_fit_go_through_shared_memory() -> None:
    assert by_tma(emit(many("kernel", 7, 0, 1), {})) == [*(f"x{i}" for i in range(7)), "o0"]
    assert by_tma(emit(many("kernel", 9, 0, 1), {})) == [*(f"x{i}" for i in range(2, 9)), "o0"]


def test_stores_give_way_before_loads() -> None:
    found = by_tma(emit(many("kernel", 5, 0, 10), {}))
    assert [n for n in found if n[0] == "x"] == [f"x{i}" for i in range(5)]
    assert 0 < len(found) - 5 < 10


def test_what_is_updated_is_read_and_written_the_same_way() -> None:
    e = emit(many("kernel", 0, 6, 0), {})
    for i in range(6):
        loaded, stored = (f"Load_w{i} = coda::TileLoad" in e.source, f"Store_w{i} = coda::TileStore" in e.source)
        assert loaded == stored
        assert loaded == (i > 0)


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("counts", [(9, 0, 1), (0, 6, 0)])
def test_such_a_kernel_compiles(counts: tuple[int, int, int], store: Cache) -> None:
    assert compile_kernel(emit(many("kernel", *counts), {}), cache=store).report.tensor_core_instructions
