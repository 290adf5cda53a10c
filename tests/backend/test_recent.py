"""A call of a form that was called before: launched without being checked anew, on new outputs; all else is checked."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang import arrays
from coda_lang.arrays import packed_strides
from coda_lang.backend_cutlass import driver, program
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.launch import Launchable
from coda_lang.backend_cutlass.recent import MOST
from coda_lang.errors import ArgumentError
from coda_lang.program import Program
from coda_lang.tuning import lookup

TEXT = """
kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K], w: f32[N] = 1, alpha: f32 = 1) -> (y: bf16[M, N], s: f32[M, tiles(N)]) {
    x = a @ b.T * w * alpha
    y <- x
    s <- tile_sum(x, over=N)
}
map f<M, N>(x: f32[M, N], s: f32[]) -> (y: f32[M, N]) { y <- x * s }
map u<M, N>(x: f32[M, N], inout t: f32[M, N]) -> () { t +<- x }
"""


class Array:
    """A CuPy array as far as calls look at it; its memory is the host's."""

    def __init__(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> None:
        self.dtype = arrays.numpy_dtype(dtype)
        self._memory = np.zeros(512 + int(np.prod(shape)) * self.dtype.itemsize, np.uint8)
        start = -self._memory.ctypes.data % 256 + offset
        self.data = SimpleNamespace(ptr=self._memory.ctypes.data + start)
        self.shape = shape
        self.strides = tuple(s * self.dtype.itemsize for s in packed_strides(shape))
        self.device = SimpleNamespace(id=0)


Array.__module__ = "cupy"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, cuda: Any, machine: Any, fake_cubin: Cubin, fake_library: Any) -> list[Any]:
    """The outputs that were allocated; launches are recorded by `cuda`."""
    found: list[Any] = []

    def compile_kernel(emitted: Any, arch: str, **more: Any) -> Cubin:
        cuda.block_bytes = emitted.params_bytes
        return fake_cubin

    def empty(shape: tuple[int, ...], dtype: str, device: int) -> Array:
        found.append(Array(shape, dtype))
        return found[-1]

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array))
    monkeypatch.setattr(fake_library, "empty", empty)
    monkeypatch.setattr(program, "compile_kernel", compile_kernel)
    monkeypatch.setattr(program, "Launchable", lambda cubin, emitted: Launchable(cubin, emitted, *machine))
    monkeypatch.setattr(driver, "load", lambda: machine[0])
    monkeypatch.setattr(lookup, "enabled", lambda: False)
    return found


def given(m: int = 256, n: int = 128, **more: Any) -> dict[str, Any]:
    return {"a": Array((m, 64), "bf16"), "b": Array((n, 64), "bf16"), **more}


@pytest.fixture
def k() -> Program:
    found = coda.loads(TEXT)["k"]
    assert isinstance(found, Program)
    return found


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, k: Program) -> list[int]:
    """One entry for each call that was checked."""
    calls: list[int] = []
    plain = k.caller.call

    def call(*arguments: Any) -> Any:
        calls.append(len(calls))
        return plain(*arguments)

    monkeypatch.setattr(k.caller, "call", call)
    return calls


def words(block: bytes) -> list[int]:
    """The block's 8-byte words, addresses among them; the fake driver writes a descriptor's address to its start."""
    return list((ctypes.c_uint64 * (len(block) // 8)).from_buffer_copy(block))


def test_the_same_form_is_launched_at_once(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    first, second = given(), given()
    one = k(**first)
    two = k(**second)
    assert len(checked) == 1
    assert len(cuda.launches) == 2
    assert [two.y, two.s] == made[-2:]
    assert one.y is not two.y
    assert (two.y.shape, two.s.shape) == (one.y.shape, one.s.shape)
    assert list(two.keys()) == list(one.keys()) == ["y", "s"]
    moved = {x.data.ptr for x in (*second.values(), two.y, two.s)}
    assert moved & set(words(cuda.launches[1].block))
    assert not moved & set(words(cuda.launches[0].block))
    assert cuda.launches[0].grid == cuda.launches[1].grid


OTHER: list[Callable[[], dict[str, Any]]] = [
    lambda: given(m=128),
    lambda: given(w=Array((128,), "f32")),
    lambda: given(alpha=2.0),
    lambda: given(alpha=-0.0),
    lambda: given(alpha=0.0),
    lambda: given(alpha=1),
    lambda: given(outputs=["y"]),
    lambda: given(w=Array((128,), "f32", offset=4)),
    lambda: {n: Array(x.shape, "bf16") for n, x in reversed(given().items())} | {"alpha": 1.0},
]


def test_another_form_is_checked(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    k(**given())
    for i, make in enumerate(OTHER, start=2):
        k(**make())
        assert len(checked) == i
    for make in OTHER:
        k(**make())
    assert len(checked) == len(OTHER) + 1, "each is known by now"


def test_what_is_wrong_stays_wrong(k: Program, cuda: Any, made: list[Any]) -> None:
    k(**given())
    launched = len(cuda.launches)
    for wrong in (
        {"a": Array((256, 64), "f16")},
        {"a": Array((256, 65), "bf16")},
        {"c": 1},
        {"outputs": ["z"]},
        {"outputs": 3},
        {"b": None},
        {"b": np.zeros((128, 64), np.float32)},
    ):
        with pytest.raises((ArgumentError, TypeError)):
            k(**{**given(), **wrong})
    assert len(cuda.launches) == launched


def test_options_go_the_usual_way(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    k(**given())
    for _ in range(2):
        k(**given(), outputs={"y"})
    assert len(checked) == 3
    with pytest.raises(ArgumentError, match="by name"):
        k(given()["a"])


def test_given_outputs_are_written(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    k(**given())
    for i in range(3):
        y = Array((256, 128), "bf16")
        made.clear()
        found = k(**given(), out={"y": y})
        assert found.y is y
        assert made == [found.s]
        assert list(found.keys()) == ["y", "s"]
        assert {y.data.ptr, found.s.data.ptr} <= set(words(cuda.launches[-1].block))
        assert len(checked) == 2
        assert len(cuda.launches) == 2 + i


def test_given_outputs_of_another_form_are_checked(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    k(**given(), out={"y": Array((256, 128), "bf16")})
    k(**given(), out={"y": Array((256, 128), "bf16", offset=2)})
    k(**given(), out={"s": Array((256, 4), "f32")})
    assert len(checked) == 3
    for wrong in (Array((256, 128), "f16"), Array((256, 129), "bf16"), np.zeros((256, 128), np.float32), None):
        with pytest.raises((ArgumentError, TypeError)):
            k(**given(), out={"y": wrong})
    with pytest.raises(ArgumentError):
        k(**given(), out={"z": Array((256, 128), "bf16")})


def test_memory_that_is_shared_is_seen_each_time(cuda: Any, made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = coda.loads(TEXT)["f"]
    checked: list[int] = []
    plain = f.caller.call
    monkeypatch.setattr(f.caller, "call", lambda *a: checked.append(1) or plain(*a))  # type: ignore[func-returns-value]

    def call(place: int | None) -> None:
        """With y where x is, moved by bytes; None: apart."""
        x, y = Array((8, 8), "f32"), Array((8, 8), "f32")
        if place is not None:
            y.data.ptr = x.data.ptr + place
        f(x=x, s=Array((), "f32"), out={"y": y})

    for _ in range(2):
        call(0)
        call(None)
    assert len(checked) == 2
    for place in (-32, 32, 240, -240):
        with pytest.raises(ArgumentError, match="shares memory"):
            call(place)
    for place in (256, -256):
        call(place)
    assert len(checked) == 6


def test_two_outputs_in_one_place_stay_wrong(k: Program, cuda: Any, made: list[Any]) -> None:
    k(**given(), out={"y": Array((256, 128), "bf16"), "s": Array((256, 4), "f32")})
    y, s = Array((256, 128), "bf16"), Array((256, 4), "f32")
    s.data.ptr = y.data.ptr
    for _ in range(2):
        with pytest.raises(ArgumentError, match="share memory"):
            k(**given(), out={"y": y, "s": s})


def test_what_is_updated_in_place_is_looked_at(cuda: Any, made: list[Any]) -> None:
    """It must not share memory with an input."""
    u = coda.loads(TEXT)["u"]
    u(x=Array((8, 8), "f32"), t=Array((8, 8), "f32"))
    x, t = Array((8, 8), "f32"), Array((8, 8), "f32")
    t.data.ptr = x.data.ptr + 32
    with pytest.raises(ArgumentError, match="shares memory"):
        u(x=x, t=t)


def test_a_number_for_an_array_is_looked_at(cuda: Any, made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes an array of the device in each call."""
    monkeypatch.setattr(
        arrays, "to_device", lambda x, device, name="": Array(x.shape, str(x.dtype).replace("float", "f"))
    )
    f = coda.loads(TEXT)["f"]
    for _ in range(3):
        assert f(x=Array((8, 8), "f32"), s=2.0).y.shape == (8, 8)
    assert len(cuda.launches) == 3
    assert not f.gpu.recent._made


def test_a_schedule_chosen_during_a_capture_is_not_remembered(
    k: Program, cuda: Any, made: list[Any], checked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuned one is looked for in the first call after it."""
    k(**given(), outputs=["y"])  # loads the kernel of the shape's default
    monkeypatch.setattr(k.gpu, "_tuned", lambda *a: (None, not cuda.capturing))
    k.gpu.forget()
    cuda.capturing = True
    k(**given(), outputs=["y"])
    cuda.capturing = False
    k(**given(), outputs=["y"])
    assert len(checked) == 3
    k(**given(), outputs=["y"])
    assert len(checked) == 3


def test_arrays_of_two_libraries_are_looked_at(
    k: Program, cuda: Any, made: list[Any], checked: list[int], monkeypatch: pytest.MonkeyPatch, fake_library: Any
) -> None:
    """Their streams may differ from call to call."""
    plain = arrays.view

    def view(array: Any, name: str = "array", dtype: str | None = None) -> Any:
        found = plain(array, name, dtype)
        return replace(found, library="torch") if name.endswith("`b`") else found

    monkeypatch.setattr(arrays, "view", view)
    monkeypatch.setitem(arrays._LIBRARIES, "torch", fake_library)
    k(**given())
    k(**given())
    assert len(checked) == 2


def test_nothing_is_kept_alive(k: Program, cuda: Any, made: list[Any]) -> None:
    for _ in range(2):
        arguments = given()
        watched = weakref.ref(arguments["a"])
        result: Any = k(**arguments)
        outputs = weakref.ref(result.y)
        made.clear()
        del arguments, result
        gc.collect()
        assert watched() is None
        assert outputs() is None


def test_only_so_many_forms_are_remembered(k: Program, cuda: Any, made: list[Any], checked: list[int]) -> None:
    for i in range(MOST + 5):
        k(**given(alpha=float(i)))
    assert len(k.gpu.recent._made) == MOST
    k(**given(alpha=float(MOST)))
    assert len(checked) == MOST + 5
    k.gpu.forget()
    k(**given(alpha=float(MOST)))
    assert len(checked) == MOST + 6
