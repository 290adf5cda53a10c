"""Row vectors on the GPU: when runs of neighbours are read at once, and how a column is followed from head to head.

`Heads` of csrc/coda/vectors.hpp runs on the host, where a C++ compiler is at hand: it is integer arithmetic.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.call import Caller

HEADER = Path(__file__).parents[2] / "csrc/coda/vectors.hpp"
STEPS = 6

HOST = """
#define CUTLASS_DEVICE inline
#define CUTLASS_PRAGMA_NO_UNROLL
HEADS
extern "C" void follow(int column, int period, int step, int const* beside, int* out) {
  Heads heads(column, period);
  for (int i = 0; i < STEPS; ++i, heads.advance(step)) {
    out[2 * i] = heads.head_of(beside[i]);
    out[2 * i + 1] = heads.column_of(beside[i]);
  }
}
"""


@pytest.fixture(scope="module")
def library(host_library: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    heads = re.search(r"^struct Heads \{.*?^\};", HEADER.read_text(), re.MULTILINE | re.DOTALL)
    assert heads is not None
    return host_library(HOST.replace("STEPS", str(STEPS)).replace("HEADS", heads[0]))


@given(
    column=st.integers(0, 2**20),
    period=st.integers(1, 300) | st.integers(1, 2**24),
    step=st.sampled_from([4, 8, 16]),
    beside=st.lists(st.integers(0, 3), min_size=STEPS, max_size=STEPS),
)
def test_heads_are_quotient_and_remainder(
    library: ctypes.CDLL, column: int, period: int, step: int, beside: list[int]
) -> None:
    out = (ctypes.c_int * (2 * STEPS))()
    library.follow(column, period, step, (ctypes.c_int * STEPS)(*beside), out)
    want = [divmod(column + i * step + c, period) for i, c in enumerate(beside)]
    assert list(zip(out[::2], out[1::2], strict=True)) == want


BOTH = """kernel both<M, N, K>(a: bf16[M, K], b: bf16[N, K], r: f32[M], c: bf16[N], i: i32[N]) -> (d: f32[M, N]) {
    d <- (a @ b.T) * r + c + f32(i)
}"""


MORE = """kernel more<M, N = H * D, K, P>(
    a: bf16[M, K], b: bf16[N, K], d: f32[D], h: f32[H], t: f32[P], p: i32[M], i: i32[N], r: f32[M],
) -> (y: f32[M, N], s: f32[M]) {
    y <- (a @ b.T) * d + h + f32(i)
    s <- t[p] * r
}"""


def source(**places: tuple[int, int]) -> str:
    """The CUDA of a call whose vectors have these addresses and strides."""
    program = coda.loads(BOTH)["both"]
    arguments = {"a": ArrayView(4096, (128, 64), (64, 1), "bf16", None, None, "numpy")}
    arguments["b"] = ArrayView(4096, (128, 64), (64, 1), "bf16", None, None, "numpy")
    for name, dtype in (("r", "f32"), ("c", "bf16"), ("i", "i32")):
        pointer, stride = places.get(name, (4096, 1))
        arguments[name] = ArrayView(pointer, (128,), (stride,), dtype, None, None, "numpy")
    caller = Caller(program.ir)
    gpu = GpuProgram(caller)
    call = caller.call(arguments, None, None)
    return gpu.emit(call, gpu.untuned(call)).source


def test_a_vector_along_the_columns_is_read_in_runs_where_it_is_aligned() -> None:
    aligned = "coda::Row<Shape, coda::bf16, 2, coda::Columns::kWhole, true>"
    apart = aligned.replace("true", "false")
    assert aligned in source()
    assert apart in source(c=(4096, 3))
    assert apart in source(c=(4098, 1))


def test_other_vectors_make_no_other_kernel() -> None:
    assert source(r=(4100, 7)) == source()
    assert source(i=(4100, 7)) == source()


def test_vectors_of_other_extents_and_outputs_are_taken_as_they_lie() -> None:
    """Wherever they lie, it is the form that is compiled, loaded and tuned already."""
    program = coda.loads(MORE)["more"]
    caller = Caller(program.ir)

    def vector(length: int, dtype: str, pointer: int, stride: int) -> ArrayView:
        return ArrayView(pointer, (length,), (stride,), dtype, None, None, "numpy")

    def direct(pointer: int, stride: int) -> frozenset[str]:
        lengths = {"d": 64, "h": 2, "t": 100, "p": 128, "i": 128, "r": 128}
        arguments: dict[str, Any] = {
            n: vector(x, "i32" if n in "pi" else "f32", pointer, stride) for n, x in lengths.items()
        }
        for name in "ab":
            arguments[name] = ArrayView(4096, (128, 64), (64, 1), "bf16", None, None, "numpy")
        out = {"s": vector(128, "f32", pointer + 65536, stride)}
        call = caller.call(arguments, None, out)
        gpu = GpuProgram(caller)
        return gpu.emit(call, gpu.untuned(call)).direct

    assert direct(4096, 1) == direct(4100, 1) == direct(4096, 3) == frozenset()
