"""Hand-written kernels through the whole path on a Hopper GPU: compile, load, descriptors, streams, graphs, devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coda_lang import arrays
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.abi import Extent, Pointer, Scalar, Stride, TensorMap
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.launch import Launchable
from coda_lang.errors import BackendError
from coda_lang.ir.types import F32, Dim, axis_dim

pytestmark = pytest.mark.gpu

M, N = axis_dim("M"), axis_dim("N")

# Each block brings a 64×64 tile of bf16 by TMA, stores it by TMA to `d`, and alpha times it by pointer to `e`.
TILE = """
#include <cuda_bf16.h>
#include <cuda/std/cstdint>
using cuda::std::uint32_t; using cuda::std::uint64_t; using cuda::std::int64_t;
struct __align__(64) Map { char bytes[128]; };
struct __align__(64) Params { Map a; Map d; float* e; int64_t pitch; int m; int n; float alpha; };
static_assert(sizeof(Params) == 320);
__device__ uint32_t shared(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void ones(const __grid_constant__ Params p) {
  __shared__ alignas(128) __nv_bfloat16 tile[64 * 64];
  __shared__ alignas(8) uint64_t full;
  int across = (p.n + 63) / 64, row = blockIdx.x / across * 64, column = blockIdx.x % across * 64;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared(&full)));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(shared(&full)), "r"(8192));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
        :: "r"(shared(tile)), "l"(&p.a), "r"(column), "r"(row), "r"(shared(&full)) : "memory");
  }
  __syncthreads();
  asm volatile("{.reg .pred q; again: mbarrier.try_wait.parity.shared.b64 q, [%0], 0; @!q bra again;}"
      :: "r"(shared(&full)) : "memory");
  for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
    int r = row + i / 64, c = column + i % 64;
    if (r < p.m && c < p.n) p.e[r * p.pitch + c] = p.alpha * __bfloat162float(tile[i]);
  }
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        :: "l"(&p.d), "r"(column), "r"(row), "r"(shared(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""

CLUSTER = """
struct __align__(64) Params { float* out; int n; };
extern "C" __global__ void __cluster_dims__(2, 1, 1) ones(const __grid_constant__ Params p) {
  extern __shared__ float s[];
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  s[40000 + threadIdx.x] = 10 * size + rank;  // past 48 KiB
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < p.n) p.out[i] = s[40000 + threadIdx.x];
}
"""

# Waits for a while, then doubles in place: what follows on another stream would see the old numbers.
SLOW = """
struct __align__(64) Params { float* out; int n; };
extern "C" __global__ void ones(const __grid_constant__ Params p) {
  long long until = clock64() + 50000000;
  while (clock64() < until) {}
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) p.out[i] = 2 * p.out[i] + 1;
}
"""


def lengths(**extents: int) -> Callable[[Dim], int]:
    return lambda dim: int(dim.coef * extents[dim.axis or ""])


@pytest.fixture
def build(emit: Any, store: Cache) -> Callable[..., Launchable]:
    def make(fields: Any = None, **changes: Any) -> Launchable:
        emitted = emit(fields, **changes)
        return Launchable(compile_kernel(emitted, cache=store), emitted)

    return make


@pytest.fixture
def tile(build: Any) -> Launchable:
    made: Launchable = build(
        [
            ("a", "TensorMap", TensorMap("a", (64, 64), 0)),
            ("d", "TensorMap", TensorMap("d", (64, 64), 0)),
            ("e", "void*", Pointer("e")),
            ("pitch", "int64_t", Stride("e", 0)),
            ("m", "int32_t", Extent(M)),
            ("n", "int32_t", Extent(N)),
            ("alpha", "float", Scalar("alpha", F32)),
        ],
        source=TILE,
        blocks=((M, 64), (N, 64)),
        threads=256,
    )
    return made


@pytest.fixture(params=["cupy", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    """The launcher's view of a library, with its name."""
    module = pytest.importorskip(request.param)
    if request.param == "torch" and not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    library = arrays.library(request.param)
    library.name, library.module = request.param, module  # type: ignore[attr-defined]
    return library


def filled(lib: Any, host: np.ndarray[Any, Any], ordinal: int = 0) -> Any:
    """A device array of the library with the contents of a host array."""
    made = lib.empty(host.shape, arrays.view(host).dtype, ordinal)
    if lib.name == "torch":
        bits = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64"}[host.itemsize]
        plain = lib.module.from_numpy(np.ascontiguousarray(host).reshape(host.shape).view(bits))
        made.copy_(plain.view(made.dtype).to(made.device))
        return made
    return arrays.to_device(host, ordinal)


def bf16(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(arrays.numpy_dtype("bf16"))


@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 100_000])
def test_ones(build: Any, lib: Any, n: int) -> None:
    out = lib.empty((n + 1,), "f32", 0)
    out[:] = -1.0
    build()({"out": out[:n]}, {}, lengths(N=n), written=["out"])
    assert lib.to_host(out).tolist() == [1.0] * n + [-1.0]


@pytest.mark.parametrize("shape", [(64, 64), (1, 8), (129, 72), (200, 520)])
def test_tiles_by_tma(tile: Launchable, lib: Any, shape: tuple[int, int]) -> None:
    m, n = shape
    a = bf16(shape)
    given = {"a": filled(lib, a), "d": filled(lib, bf16(shape, 1)), "e": lib.empty((m, n + 5), "f32", 0)[:, :n]}
    plan = tile.plan(given, {"alpha": 0.5}, lengths(M=m, N=n), written=["d", "e"])
    assert not plan.notes
    plan()
    assert lib.to_host(given["d"]).tobytes() == a.tobytes()
    assert np.array_equal(lib.to_host(given["e"]), a.astype(np.float32) * 0.5)


def test_layouts_that_tma_cannot_address(tile: Launchable, lib: Any) -> None:
    whole = bf16((90, 203))
    big = filled(lib, whole)
    turned = filled(lib, np.ascontiguousarray(whole.T))
    cases = {
        "odd rows": (big, whole),
        "a base that is not aligned": (big[1:, 1:], whole[1:, 1:]),
        "gaps": (big[:, ::2], whole[:, ::2]),
        "transposed": (turned.T, whole),
    }
    for name, (a, host) in cases.items():
        m, n = host.shape
        target = filled(lib, np.zeros((m + 1, n + 3), whole.dtype))
        d = target[1:, 3:]
        given = {"a": a, "d": d, "e": lib.empty((m, n), "f32", 0)}
        plan = tile.plan(given, {"alpha": 1.0}, lengths(M=m, N=n), written=["d", "e"])
        assert len(plan.notes) == 2, name
        plan()
        after = lib.to_host(target)
        assert after[1:, 3:].tobytes() == np.ascontiguousarray(host).tobytes(), name
        assert not after[0].astype(np.float32).any(), name
        assert not after[:, :3].astype(np.float32).any(), name


def test_a_plan_sees_new_contents_and_new_arrays(tile: Launchable, lib: Any) -> None:
    shape = (128, 128)
    first, second = bf16(shape, 1), bf16(shape, 2)
    given = {"a": filled(lib, first), "d": filled(lib, first), "e": lib.empty(shape, "f32", 0)}
    plan = tile.plan(given, {"alpha": 1.0}, lengths(M=128, N=128), written=["d", "e"])
    plan()
    assert np.array_equal(lib.to_host(given["e"]), first.astype(np.float32))
    lib.copy(given["a"], filled(lib, second), 0)
    plan()
    assert np.array_equal(lib.to_host(given["e"]), second.astype(np.float32))
    third = bf16(shape, 3)
    plan.bind({"a": filled(lib, third)})
    plan()
    assert np.array_equal(lib.to_host(given["e"]), third.astype(np.float32))
    assert lib.to_host(given["d"]).tobytes() == third.tobytes()


def test_clusters_and_much_shared_memory(build: Any, lib: Any) -> None:
    kernel = build(source=CLUSTER, cluster=(2, 1), shared_bytes=200_000)
    out = lib.empty((512,), "f32", 0)
    kernel({"out": out}, {}, lengths(N=512), written=["out"])
    assert lib.to_host(out).tolist() == ([20.0] * 128 + [21.0] * 128) * 2


def on_side_stream(lib: Any) -> Any:
    if lib.name == "torch":
        return lib.module.cuda.stream(lib.module.cuda.Stream())
    return lib.module.cuda.Stream(non_blocking=True)


def test_the_callers_stream(build: Any, lib: Any) -> None:
    slow = build(source=SLOW, blocks=((N, 1 << 20),))
    out = lib.empty((1000,), "f32", 0)
    out[:] = 0.0
    slow({"out": out}, {}, lengths(N=1000))
    lib.to_host(out)
    out[:] = 0.0
    lib.to_host(out)
    with on_side_stream(lib):
        out[:] = 3.0
        for _ in range(3):
            slow({"out": out}, {}, lengths(N=1000))
        after = out + 0.0
        assert set(lib.to_host(after).tolist()) == {31.0}


def test_a_graph_after_a_warm_up(build: Any, tile: Launchable, lib: Any) -> None:
    if lib.name != "torch":
        pytest.skip("captured through torch")
    torch = lib.module
    a = bf16((65, 71))  # does not fit TMA: the copies are captured too
    given = {"a": filled(lib, a), "d": filled(lib, a), "e": lib.empty((65, 71), "f32", 0)}
    arguments = (given, {"alpha": 2.0}, lengths(M=65, N=71), ["d", "e"])
    cold = build(source=SLOW.replace("50000000", "1000"), blocks=((N, 1 << 20),))
    out = lib.empty((10,), "f32", 0)
    with pytest.raises(BackendError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        cold({"out": out}, {}, lengths(N=10))
    torch.cuda.synchronize()
    tile(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tile(*arguments)
    other = bf16((65, 71), 9)
    given["a"].copy_(filled(lib, other))
    given["e"].fill_(float("nan"))
    for _ in range(3):
        graph.replay()
    assert np.array_equal(lib.to_host(given["e"]), 2 * other.astype(np.float32))


def test_another_device(build: Any, lib: Any) -> None:
    if device.driver.load().device_count() < 2:
        pytest.skip("one GPU")
    cuda = device.driver.load()
    kernel = build()
    out = {ordinal: lib.empty((300,), "f32", ordinal) for ordinal in (0, 1)}
    zeros = {ordinal: filled(lib, np.zeros(300, np.float32), ordinal) for ordinal in (0, 1)}
    before = cuda.current_context()
    for ordinal in (1, 0, 1):
        kernel({"out": out[ordinal]}, {}, lengths(N=300), written=["out"])
        assert cuda.current_context() == before
        assert set(lib.to_host(out[ordinal]).tolist()) == {1.0}
        lib.copy(out[ordinal], zeros[ordinal], ordinal)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i64", "bool"])
def test_every_element_type_there_and_back(lib: Any, dtype: str) -> None:
    host = np.arange(24).reshape(4, 6).astype(arrays.numpy_dtype(dtype))
    there = filled(lib, host)
    v = arrays.view(there, "x", dtype)
    assert (v.dtype, v.shape, v.strides, v.device, v.library) == (dtype, (4, 6), (6, 1), 0, lib.name)
    copy = lib.empty((4, 6), dtype, 0)
    lib.copy(copy, there, 0)
    assert arrays.to_numpy(arrays.view(copy, "x", dtype)).tobytes() == host.tobytes()
    assert arrays.to_numpy(arrays.view(there[:, ::2], "x", dtype)).tolist() == host[:, ::2].tolist()


def test_an_array_known_only_by_dlpack(build: Any, lib: Any) -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

    out = lib.empty((100,), "f32", 0)
    build()({"out": Foreign(out)}, {}, lengths(N=100))
    assert set(lib.to_host(out).tolist()) == {1.0}


def test_no_memory_left(lib: Any) -> None:
    with pytest.raises(BackendError, match="no memory for f32"):
        lib.empty((1 << 40,), "f32", 0)


def test_the_host_time_of_a_prepared_call(tile: Launchable, lib: Any) -> None:
    shape = (64, 64)
    given = {"a": filled(lib, bf16(shape)), "d": filled(lib, bf16(shape)), "e": lib.empty(shape, "f32", 0)}
    plan = tile.plan(given, {"alpha": 1.0}, lengths(M=64, N=64))
    best = 1.0
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(100):
            plan()
        best = min(best, (time.perf_counter() - start) / 100)
        lib.to_host(given["e"])
    assert best < 10e-6, f"{best * 1e6:.1f} µs"
