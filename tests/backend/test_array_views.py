"""Arrays of every library as views: element types, layouts, and memory that is shared rather than copied."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from coda_lang import arrays
from coda_lang.arrays import ArrayView, packed_strides, to_numpy, view
from coda_lang.errors import ArgumentError

torch = pytest.importorskip("torch")

TYPES = ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i64", "bool"]


class Foreign:
    """An array of a library that is known only by DLPack; `old` producers take no version."""

    def __init__(self, tensor: Any, old: bool = False) -> None:
        self.tensor, self.old = tensor, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return tuple(int(x) for x in self.tensor.__dlpack_device__())  # type: ignore[return-value]

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword arguments")
        return self.tensor.__dlpack__(**options)


def numbers(dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(12).reshape(3, 4).astype(arrays.numpy_dtype(dtype))


def in_torch(array: np.ndarray[Any, Any], dtype: str) -> Any:
    kinds = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
    if dtype not in kinds:
        return torch.from_numpy(array)
    bits = array.view({1: np.uint8, 2: np.uint16}[array.itemsize])
    return torch.from_numpy(bits).view(getattr(torch, kinds[dtype]))


@pytest.mark.parametrize("dtype", TYPES)
def test_numpy_and_torch_give_the_same_view(dtype: str) -> None:
    array = numbers(dtype)
    expected = (array.ctypes.data, (3, 4), (4, 1), dtype, None)
    for given in (array, in_torch(array, dtype)):
        v = view(given)
        assert (v.pointer, v.shape, v.strides, v.dtype, v.device) == expected
        assert v.owner is given


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("old", [False, True])
def test_dlpack(dtype: str, old: bool) -> None:
    array = numbers(dtype)
    v = view(Foreign(in_torch(array, dtype), old))
    assert (v.pointer, v.shape, v.strides, v.dtype) == (array.ctypes.data, (3, 4), (4, 1), dtype)
    assert v.library == "dlpack"


@pytest.mark.parametrize("dtype", TYPES)
def test_to_numpy_shares_the_memory(dtype: str) -> None:
    array = numbers(dtype)
    for given in (array, in_torch(array, dtype), Foreign(in_torch(array, dtype))):
        out = to_numpy(given)
        assert out.dtype == array.dtype
        assert out.ctypes.data == array.ctypes.data
        assert out.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "key", [np.s_[1:], np.s_[:, ::2], np.s_[::-1, ::-1], np.s_[1:1], np.s_[:, 3:4], np.s_[..., None], np.s_[2, 3, ...]]
)
def test_layouts(key: Any) -> None:
    array = numbers("f32")[key]
    v = view(array)
    assert v.strides == tuple(s // 4 for s in array.strides)
    rebuilt = np.asarray(arrays._HostMemory(v, "<f4", 4))
    assert np.array_equal(rebuilt, array)
    if all(s >= 0 for s in array.strides):
        assert view(torch.from_numpy(array)).strides == v.strides or 1 in array.shape or 0 in array.shape


def test_a_transposed_tensor() -> None:
    v = view(torch.zeros(3, 4).T)
    assert (v.shape, v.strides) == ((4, 3), (1, 4))
    assert np.shares_memory(to_numpy(v), to_numpy(v.owner))


def test_read_only() -> None:
    array = numbers("f32")
    assert not view(array).readonly
    array.flags.writeable = False
    assert view(array).readonly
    assert view(Foreign(array)).readonly, "DLPack says so too"


def test_memory_lives_as_long_as_a_view_of_it() -> None:
    tensor = torch.arange(1000, dtype=torch.float32)
    storage = weakref.ref(tensor)
    out = to_numpy(tensor.view(10, 100))
    del tensor
    gc.collect()
    assert out[9, 99] == 999.0
    foreign = view(Foreign(torch.full((1000,), 3.0)))
    gc.collect()
    assert set(to_numpy(foreign)) == {3.0}
    del out, foreign
    gc.collect()
    assert storage() is None


def test_a_lazily_negated_tensor() -> None:
    lazy = torch.imag(torch.conj(torch.complex(torch.ones(4), torch.full((4,), 2.0))))
    assert lazy.is_neg()
    assert list(to_numpy(lazy)) == [-2.0] * 4


def test_gradients_do_not_hinder() -> None:
    assert view(torch.ones(3, requires_grad=True)).shape == (3,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1.0, 2.0], "expected an array"),
        (3.0, "got float"),
        (np.zeros(3), "float64"),
        (np.zeros(3, ">f4"), ">f4"),
        (np.zeros(3, np.uint8), "uint8"),
        (np.zeros(3, ml_dtypes.float8_e4m3b11fnuz), "float8_e4m3b11fnuz"),
        (np.array(["x"]), "<U1"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64"),
        (torch.zeros(3, device="meta"), "on meta"),
        (torch.eye(3).to_sparse(), "a sparse one"),
        (Foreign(torch.zeros(3, dtype=torch.complex64)), "5, 64 bits"),
        (Foreign(np.zeros(3)), "2, 64 bits"),
        (np.zeros(3, [("x", "f4"), ("y", "i2")])["x"], "no multiples"),
    ],
)
def test_what_is_no_array_of_the_language(given: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        view(given, "rmsnorm: `a`")
    assert str(caught.value).startswith("rmsnorm: `a`: ")
    assert words in str(caught.value)


def test_devices_of_a_call() -> None:
    def on(device: int | None) -> ArrayView:
        return ArrayView(0, (), (), "f32", device, None, "cupy")

    assert arrays.common_device({}) is None
    assert arrays.common_device({"a": on(1), "b": on(1)}) == 1
    with pytest.raises(ArgumentError, match="a on cuda:0, b on the host"):
        arrays.common_device({"a": on(0), "b": on(None)})


def test_streams_of_two_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Queue:
        def __init__(self, handle: int) -> None:
            self.handle = handle

        def stream(self, device: int) -> int:
            return self.handle

    views = [ArrayView(0, (), (), "f32", 0, None, name) for name in ("cupy", "torch")]
    monkeypatch.setattr(arrays, "_LIBRARIES", {"cupy": Queue(7), "torch": Queue(7)})
    assert arrays.current_stream(views, 0) == 7
    monkeypatch.setattr(arrays, "_LIBRARIES", {"cupy": Queue(7), "torch": Queue(8)})
    with pytest.raises(ArgumentError, match="current streams differ"):
        arrays.current_stream(views, 0)
    assert arrays.current_stream(views[:1], 0) == 7
    assert arrays.cuda_library(views) == "torch"
    assert arrays.cuda_library(views[:1]) == "cupy"


def test_packed_strides() -> None:
    for shape in [(), (3,), (3, 4), (2, 3, 4), (1, 1)]:
        assert packed_strides(shape) == tuple(s // 4 for s in np.zeros(shape, np.float32).strides)
