"""From arguments to the launch call, on a driver that only records."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coda_lang.backend_cutlass import launch
from coda_lang.backend_cutlass.abi import Extent, Pointer, Scalar, Stride, TensorMap
from coda_lang.backend_cutlass.launch import Launchable, Plan
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.types import F32, I32, I64, Dim, axis_dim

M, N, K = axis_dim("M"), axis_dim("N"), axis_dim("K")


def lengths(**extents: int) -> Callable[[Dim], int]:
    return lambda dim: int(dim.coef * extents[dim.axis or ""])


@pytest.fixture
def gemm(emit: Any, fake_cubin: Any, machine: Any, cuda: Any) -> Launchable:
    """A persistent kernel with an operand, a vector, an output by TMA and one of each kind of number."""
    emitted = emit(
        [
            ("alpha", "float", Scalar("alpha", F32)),
            ("a", "TensorMap", TensorMap("a", (64, 128), 128)),
            ("count", "int32_t", Scalar("count", I32)),
            ("bias", "void*", Pointer("bias")),
            ("d", "TensorMap", TensorMap("d", (32, 64), 64)),
            ("m", "int32_t", Extent(M)),
            ("half", "int64_t", Extent(N.scaled(1))),
            ("pitch", "int64_t", Stride("e", 0)),
            ("e", "void*", Pointer("e")),
            ("big", "int64_t", Scalar("big", I64)),
        ],
        blocks=((M, 128), (N, 256)),
        persistent=True,
        cluster=(2, 1),
        tile=(128, 256),
        threads=384,
        shared_bytes=200_000,
    )
    cuda.block_bytes = emitted.params_bytes
    return Launchable(fake_cubin, emitted, *machine)


class Block(ctypes.Structure):
    """The same members as a C compiler lays them out (a descriptor's alignment is 64)."""

    _fields_ = (
        ("alpha", ctypes.c_float),
        ("_0", ctypes.c_char * 60),
        ("a", ctypes.c_uint64 * 16),
        ("count", ctypes.c_int32),
        ("bias", ctypes.c_uint64),
        ("_1", ctypes.c_char * 48),
        ("d", ctypes.c_uint64 * 16),
        ("m", ctypes.c_int32),
        ("half", ctypes.c_int64),
        ("pitch", ctypes.c_int64),
        ("e", ctypes.c_uint64),
        ("big", ctypes.c_int64),
    )


def arguments(on_gpu: Any, m: int = 300, n: int = 512, k: int = 200, **changes: Any) -> dict[str, Any]:
    made = {
        "a": on_gpu((m, k), "bf16"),
        "bias": on_gpu((n,)),
        "d": on_gpu((m, n), "bf16"),
        "e": on_gpu((m, n), pitch=n + 3),
    }
    return made | changes


SCALARS = {"alpha": 0.5, "count": -3, "big": 2**40}


def test_the_block_as_a_c_compiler_sees_it(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    given = arguments(on_gpu)
    gemm(given, SCALARS, lengths(M=300, N=512, K=200), written=["d"])
    (done,) = cuda.launches
    assert len(done.block) == 448
    assert ctypes.sizeof(Block) <= 448
    block = Block.from_buffer_copy(done.block[: ctypes.sizeof(Block)])
    assert (block.alpha, block.count, block.big) == (0.5, -3, 2**40)
    assert (block.m, block.half, block.pitch) == (300, 512, 515)
    address = {name: array.view().pointer for name, array in given.items()}
    assert (block.bias, block.e) == (address["bias"], address["e"])
    assert list(block.a)[:7] == [address["a"], 9, 200, 300, 400, 64, 128]
    assert list(block.d)[:7] == [address["d"], 9, 512, 300, 1024, 32, 64]


def test_the_launch_shape(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    (done,) = cuda.launches
    # 300 x 512 is 2 x 2 clusters of 256 x 256: fewer than fit the device
    assert (done.grid, done.threads, done.shared, done.function) == ((8, 1, 1), 384, 200_000, 10_000)
    assert cuda.shared == {10_000: 200_000}


@pytest.mark.parametrize(("cluster", "blocks"), [((1, 1), 132), ((2, 1), 132), ((4, 1), 128), ((2, 2), 64)])
def test_as_many_clusters_as_run_at_once(
    emit: Any, fake_cubin: Any, machine: Any, cuda: Any, on_gpu: Any, cluster: tuple[int, int], blocks: int
) -> None:
    """A GPC of 16 holds four clusters of four, so that 32 run at once; one more would run when all are through."""
    extents = [("m", "int32_t", Extent(M)), ("a", "void*", Pointer("a"))]
    shape = {"blocks": ((M, 128), (N, 256)), "persistent": True, "tile": (128, 256), "threads": 384}
    unit = emit(extents, cluster=cluster, shared_bytes=1024, **shape)
    cuda.block_bytes = unit.params_bytes
    kernel = Launchable(fake_cubin, unit, *machine)
    kernel({"a": on_gpu((8,))}, {}, lengths(M=128 * 400, N=256 * 4))
    (done,) = cuda.launches
    assert done.grid == (blocks, cluster[1], 1)


def test_the_current_context_comes_back_and_the_kernel_runs_in_its_own(
    gemm: Launchable, cuda: Any, on_gpu: Any
) -> None:
    both = lengths(M=300, N=512)
    for ordinal in (1, 0, 1):
        gemm({n: x.__class__(x.data, ordinal) for n, x in arguments(on_gpu).items()}, SCALARS, both)
        assert cuda.contexts == [77]
    assert [x.context for x in cuda.launches] == [1001, 1000, 1001]
    assert cuda.loads == [(1001, "ones"), (1000, "ones")], "loaded once for each device"


def test_the_current_stream_of_each_run(gemm: Launchable, cuda: Any, on_gpu: Any, fake_library: Any) -> None:
    plan = gemm.plan(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    for stream in (0, 4321):
        fake_library.streams[0] = stream
        plan()
    assert [x.stream for x in cuda.launches] == [0, 4321]


@pytest.mark.parametrize("early", [False, True])
def test_a_kernel_starts_early_only_if_it_waits_by_itself(
    emit: Any, fake_cubin: Any, machine: Any, cuda: Any, on_gpu: Any, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = emit([("m", "int32_t", Extent(M)), ("a", "void*", Pointer("a"))], early=early, blocks=((M, 128),))
    cuda.block_bytes = unit.params_bytes
    kernel = Launchable(fake_cubin, unit, *machine)
    kernel({"a": on_gpu((8,))}, {}, lengths(M=128))
    monkeypatch.setenv("CODA_EARLY", "0")
    kernel({"a": on_gpu((8,))}, {}, lengths(M=128))
    assert [done.early for done in cuda.launches] == [early, False]


@pytest.mark.parametrize(("m", "n"), [(0, 512), (300, 0), (0, 0)])
def test_an_empty_output_launches_nothing(gemm: Launchable, cuda: Any, on_gpu: Any, m: int, n: int) -> None:
    gemm(arguments(on_gpu, m, n), SCALARS, lengths(M=m, N=n))
    assert not cuda.launches
    gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert len(cuda.launches) == 1


def test_an_empty_contraction_launches_with_a_zero_descriptor(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    gemm(arguments(on_gpu, k=0), SCALARS, lengths(M=300, N=512))
    block = Block.from_buffer_copy(cuda.launches[0].block[: ctypes.sizeof(Block)])
    assert set(block.a) == {0}
    assert block.d[0]


def test_a_second_call_reuses_the_descriptors(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    both = lengths(M=300, N=512)
    first, second = arguments(on_gpu), arguments(on_gpu)
    gemm(first, SCALARS, both)
    gemm(second, SCALARS, both)
    assert cuda.encodes == 2, "one for each of the two descriptors, at the first call"
    blocks = [Block.from_buffer_copy(x.block[: ctypes.sizeof(Block)]) for x in cuda.launches]
    for block, given in zip(blocks, (first, second), strict=True):
        assert block.a[0] == given["a"].view().pointer
        assert block.d[0] == given["d"].view().pointer
        assert block.bias == given["bias"].view().pointer
        assert block.e == given["e"].view().pointer


@pytest.mark.parametrize("change", [{"alpha": -0.0}, {"alpha": 0.25}, {"count": 7}, {"big": -1}])
def test_scalars_are_not_taken_from_an_earlier_call(gemm: Launchable, cuda: Any, on_gpu: Any, change: Any) -> None:
    given, both = arguments(on_gpu), lengths(M=300, N=512)
    zero = SCALARS | {"alpha": 0.0}
    gemm(given, zero, both)
    gemm(given, zero | change, both)
    block = Block.from_buffer_copy(cuda.launches[1].block[: ctypes.sizeof(Block)])
    ((name, value),) = change.items()
    got = getattr(block, name)
    assert got == value
    assert math.copysign(1, got) == math.copysign(1, value)


def test_extents_are_not_taken_from_an_earlier_call(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    given = arguments(on_gpu)
    for n in (512, 4096):  # the same arrays, an axis passed by name
        gemm(given, SCALARS, lengths(M=300, N=n))
    assert [Block.from_buffer_copy(x.block[: ctypes.sizeof(Block)]).half for x in cuda.launches] == [512, 4096]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1e40, math.inf), (-1e40, -math.inf), (math.inf, math.inf), (3.4028235677973366e38, math.inf), (True, 1.0)],
)
def test_numbers_beyond_f32_round_to_infinity(
    gemm: Launchable, cuda: Any, on_gpu: Any, value: float, expected: float
) -> None:
    gemm(arguments(on_gpu), SCALARS | {"alpha": value}, lengths(M=300, N=512))
    assert Block.from_buffer_copy(cuda.launches[0].block[: ctypes.sizeof(Block)]).alpha == expected


def test_the_largest_float_stays_finite(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    almost = np.nextafter(3.4028235677973366e38, 0)
    gemm(arguments(on_gpu), SCALARS | {"alpha": almost}, lengths(M=300, N=512))
    got = Block.from_buffer_copy(cuda.launches[0].block[: ctypes.sizeof(Block)]).alpha
    assert got == np.finfo(np.float32).max


def test_a_number_that_does_not_fit(gemm: Launchable, on_gpu: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`count` is 4294967296, which does not fit 32 bits"):
        gemm(arguments(on_gpu), SCALARS | {"count": 2**32}, lengths(M=300, N=512))


# Copies


@pytest.mark.parametrize(
    "odd",
    [
        {"shape": (300, 199)},
        {"shape": (300, 200), "offset": 2},
        {"shape": (300, 200), "pitch": 203},
    ],
)
def test_an_operand_that_tma_cannot_address_is_copied(
    gemm: Launchable, cuda: Any, on_gpu: Any, fake_library: Any, odd: Any
) -> None:
    a = on_gpu(odd.pop("shape"), "bf16", **odd)
    a.data[...] = np.arange(a.data.size).reshape(a.data.shape)
    plan = gemm.plan(arguments(on_gpu, a=a), SCALARS, lengths(M=300, N=512), written=["d"])
    plan()
    ((target, source),) = fake_library.copies
    assert source is a
    assert np.array_equal(target.data, a.data)
    assert target.data.strides[0] % 16 == 0
    assert target.data.ctypes.data % 16 == 0
    assert Block.from_buffer_copy(cuda.launches[0].block[: ctypes.sizeof(Block)]).a[0] == target.data.ctypes.data
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("`a` is copied: ")


def test_a_transposed_operand_is_copied(gemm: Launchable, on_gpu: Any, fake_library: Any) -> None:
    a = on_gpu((200, 300), "bf16")
    a.data[...] = np.arange(60_000).reshape(200, 300)
    given = arguments(on_gpu) | {"a": a.__class__(a.data.T, 0)}
    gemm(given, SCALARS, lengths(M=300, N=512))
    ((target, _),) = fake_library.copies
    assert np.array_equal(target.data, a.data.T)
    assert target.data.strides == (400, 2)


def test_an_output_that_does_not_fit_is_copied_back(
    gemm: Launchable, cuda: Any, on_gpu: Any, fake_library: Any
) -> None:
    d = on_gpu((300, 512), "bf16", offset=2)
    gemm(arguments(on_gpu, d=d), SCALARS, lengths(M=300, N=512), written=["d"])
    ((target, source),) = fake_library.copies
    assert target is d, "and not copied in: its old contents are not read"
    assert source is not d


def test_an_updated_array_is_copied_both_ways(gemm: Launchable, on_gpu: Any, fake_library: Any) -> None:
    d = on_gpu((300, 512), "bf16", offset=2)
    gemm(arguments(on_gpu, d=d), SCALARS, lengths(M=300, N=512), updated=["d"])
    assert [target is d for target, _ in fake_library.copies] == [False, True]


def test_a_vector_with_gaps_is_copied(gemm: Launchable, on_gpu: Any, fake_library: Any) -> None:
    bias = on_gpu((1024,))[::2]
    plan = gemm.plan(arguments(on_gpu, bias=bias), SCALARS, lengths(M=300, N=512))
    assert plan.notes == ("`bias` is copied: its stride along dimension 0 is 2, not 1",)


def test_a_stride_that_the_kernel_is_told_needs_no_copy(gemm: Launchable, on_gpu: Any, fake_library: Any) -> None:
    assert not gemm.plan(arguments(on_gpu), SCALARS, lengths(M=300, N=512)).notes  # e has one
    gaps = {"e": on_gpu((300, 1024))[:, ::2]}
    assert len(gemm.plan(arguments(on_gpu) | gaps, SCALARS, lengths(M=300, N=512)).notes) == 1


# Plans


def test_a_plan_is_bound_to_other_arrays(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    plan = gemm.plan(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    other = on_gpu((300, 200), "bf16")
    plan.bind({"a": other})
    plan()
    assert Block.from_buffer_copy(cuda.launches[0].block[: ctypes.sizeof(Block)]).a[0] == other.view().pointer


def test_a_plan_is_bound_to_other_arrays_that_are_copied(gemm: Launchable, on_gpu: Any, fake_library: Any) -> None:
    first, second = (on_gpu((300, 200), "bf16", offset=2) for _ in range(2))
    plan = gemm.plan(arguments(on_gpu, a=first), SCALARS, lengths(M=300, N=512))
    plan.bind({"a": second})
    plan()
    ((_, source),) = fake_library.copies
    assert source is second


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("x", lambda g: g((4, 4)), "no array `x`"),
        ("a", lambda g: g((300, 208), "bf16"), "was made for"),
        ("a", lambda g: g((300, 200), "f16"), "was made for"),
        ("a", lambda g: g((300, 200), "bf16", device=1), "cuda:1"),
        ("a", lambda g: g((300, 200), "bf16", offset=2), "aligned"),
    ],
)
def test_a_plan_refuses_arrays_that_differ(gemm: Launchable, on_gpu: Any, name: str, make: Any, text: str) -> None:
    plan = gemm.plan(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    with pytest.raises(ArgumentError, match=text):
        plan.bind({"bias": on_gpu((512,)), name: make(on_gpu)})


def test_a_plan_keeps_its_arrays(gemm: Launchable, on_gpu: Any) -> None:
    given = arguments(on_gpu)
    pointer = given["a"].view().pointer
    plan: Plan = gemm.plan(given, SCALARS, lengths(M=300, N=512))
    del given
    assert plan.views["a"].owner.view().pointer == pointer


# Refusals


def test_arrays_on_two_devices(gemm: Launchable, on_gpu: Any) -> None:
    with pytest.raises(ArgumentError, match=r"one device, got .*bias on cuda:1"):
        gemm(arguments(on_gpu, bias=on_gpu((512,), device=1)), SCALARS, lengths(M=300, N=512))


def test_host_arrays(gemm: Launchable) -> None:
    with pytest.raises(ArgumentError, match="host memory"):
        gemm({"a": np.zeros((4, 4), np.float32)}, {}, lengths())


def test_the_first_call_inside_a_capture(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    cuda.capturing = True
    with pytest.raises(BackendError, match="capture") as caught:
        gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert "before the capture" in (caught.value.help or "")
    assert not cuda.loads
    cuda.capturing = False
    gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    cuda.capturing = True
    gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert len(cuda.launches) == 2
    with pytest.raises(BackendError, match="capture"):
        launch.refuse_capture(0, gemm.cuda)


def test_a_launch_that_fails_leaves_the_context_alone(gemm: Launchable, cuda: Any, on_gpu: Any) -> None:
    cuda.fails["cuLaunchKernelEx"] = 2
    with pytest.raises(BackendError, match="launching"):
        gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert cuda.contexts == [77]


def test_a_load_that_fails_leaves_the_context_alone_and_can_be_tried_again(
    gemm: Launchable, cuda: Any, on_gpu: Any
) -> None:
    cuda.fails["cuModuleLoadData"] = 209
    with pytest.raises(BackendError, match="another architecture"):
        gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert cuda.contexts == [77]
    del cuda.fails["cuModuleLoadData"]
    gemm(arguments(on_gpu), SCALARS, lengths(M=300, N=512))
    assert len(cuda.launches) == 1


def test_threads_load_once(gemm: Launchable, cuda: Any) -> None:
    threads = [threading.Thread(target=gemm.load) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(cuda.loads) == 1
