"""Arrays of every layout and library, `out=`, `outputs=`, aliases, and NumPy warnings that must not leak."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import coda_lang as coda
from coda_lang import ArgumentError
from coda_lang.interp import run as run_module
from coda_lang.ir.numerics import STORAGE
from programs import random_call, random_program

Array = np.ndarray[Any, Any]

KERNEL = """kernel k<M, N, K; T: bf16 | f16 | f8e4m3>(
    a: T[M, K], b: T[N, K], c: f32[M, N], s: f32[M], w: f32[N], i: i32[M], p: bool[M, N], g: f32[] = 1,
) -> (y: f32[M, N], z: T[M, N]?, m: f32[M, tiles(N)]) {
    x = (a @ b.T) * s + c * w * g
    v = select(p, x, f32(i))
    y <- v  z <- v  m <- tile_max(v, over=N)
}"""
M, N, K = 6, 10, 8


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def arguments(dtype: Any = ml_dtypes.bfloat16) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def whole(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(np.float32)

    return {
        "a": whole(M, K).astype(dtype),
        "b": whole(N, K).astype(dtype),
        "c": whole(M, N),
        "s": whole(M),
        "w": whole(N),
        "i": rng.integers(0, 9, M).astype(np.int32),
        "p": rng.random((M, N)) < 0.5,
    }


def expected(x: dict[str, Any]) -> Array:
    a, b = x["a"].astype(np.float64), x["b"].astype(np.float64)
    v = (a @ b.T) * x["s"][:, None] + x["c"].astype(np.float64) * x["w"] * x.get("g", 1)
    return np.asarray(np.where(x["p"], v, x["i"][:, None]))


def run(**arguments: Any) -> coda.Result:
    return coda.loads(KERNEL).k(**arguments)


# -- layouts -----------------------------------------------------------------------------------------------------------


def reversed_strides(x: Array) -> Array:
    return np.ascontiguousarray(x[tuple([slice(None, None, -1)] * x.ndim)])[tuple([slice(None, None, -1)] * x.ndim)]


def every_second(x: Array) -> Array:
    big = np.zeros([2 * n + 1 for n in x.shape], x.dtype)
    view = big[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def column_major(x: Array) -> Array:
    return np.asfortranarray(x)


def read_only(x: Array) -> Array:
    y = x.copy()
    y.flags.writeable = False
    return y


def wide_rows(x: Array) -> Array:
    big = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    big[..., : x.shape[-1]] = x
    return big[..., : x.shape[-1]]


def misaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = np.frombuffer(raw.data, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    y.setflags(write=True)
    y[...] = x
    return y


def big_endian(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind in "fi" and x.dtype.isbuiltin == 1 else x


def in_a_record(x: Array) -> Array:
    """A field of a structured array: byte strides that are no multiple of the element's size."""
    record = np.zeros(x.shape, np.dtype([("pad", np.uint8), ("x", x.dtype)]))
    record["x"] = x
    return record["x"]


def subclass(x: Array) -> Array:
    return x.view(np.matrix) if x.ndim == 2 and x.dtype == np.float32 else x


LAYOUTS = [reversed_strides, every_second, column_major, read_only, wide_rows, misaligned, big_endian, in_a_record]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_layouts_of_inputs(layout: Any, dtype: Any) -> None:
    plain = arguments(dtype)
    out = run(**{n: layout(x) for n, x in plain.items()})
    np.testing.assert_array_equal(out.y, expected(plain))


@pytest.mark.parametrize("layout", [reversed_strides, every_second, column_major, wide_rows])
def test_layouts_of_outputs(layout: Any) -> None:
    plain = arguments()
    y, z = layout(np.full((M, N), np.nan, np.float32)), layout(np.zeros((M, N), ml_dtypes.bfloat16))
    out = run(**plain, out={"y": y, "z": z}, outputs=["y", "z"])
    assert out.y is y
    np.testing.assert_array_equal(y, expected(plain))
    np.testing.assert_array_equal(z, expected(plain).astype(ml_dtypes.bfloat16))


def test_stride_zero_inputs() -> None:
    plain = arguments()
    for name in ("a", "c", "s", "p"):
        plain[name] = np.broadcast_to(plain[name][:1], plain[name].shape)
    plain["w"] = np.broadcast_to(np.float32(2), (N,))
    np.testing.assert_array_equal(run(**plain).y, expected(plain))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_and_single_axes_with_odd_strides(m: int, n: int, k: int) -> None:
    odd = {name: np.lib.stride_tricks.as_strided(np.ones(64, dtype), shape, strides)
           for name, dtype, shape, strides in (
               ("a", ml_dtypes.bfloat16, (m, k), (14, 6)), ("b", ml_dtypes.bfloat16, (n, k), (2, 22)),
               ("c", np.float32, (m, n), (44, 4)), ("s", np.float32, (m,), (12,)), ("w", np.float32, (n,), (20,)),
               ("i", np.int32, (m,), (28,)), ("p", np.bool_, (m, n), (9, 5)))}  # fmt: skip
    odd = {name: x if x.size > 1 else np.lib.stride_tricks.as_strided(x, x.shape, [s * 1001 for s in x.strides])
           if x.size else x for name, x in odd.items()}  # fmt: skip
    out = run(**odd)
    assert out.y.shape == (m, n)
    np.testing.assert_array_equal(out.y, np.full((m, n), k + 1.0))
    assert run(**arguments()).y.shape == (M, N)  # and the next call works


@pytest.mark.parametrize("g", [2, 2.0, np.float32(2), np.float64(2), np.asarray(2.0, np.float32), np.int64(2)])
def test_numbers_for_a_device_scalar(g: Any) -> None:
    plain = arguments()
    np.testing.assert_array_equal(run(**plain, g=g).y, expected(plain | {"g": 2}))


# -- libraries ---------------------------------------------------------------------------------------------------------


def to_torch(x: Array) -> torch.Tensor:
    names = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}
    if x.dtype.name in names:
        return torch.from_numpy(x.astype(np.float32)).to(names[x.dtype.name])
    return torch.from_numpy(x.copy())


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_torch_in_torch_out(dtype: Any) -> None:
    plain = arguments(dtype)
    tensors = {n: to_torch(x) for n, x in plain.items()}
    out = coda.loads(KERNEL).k(**tensors, outputs=["y", "z"])
    assert out.y.dtype == torch.float32
    assert out.z.dtype == tensors["a"].dtype
    np.testing.assert_array_equal(out.y.numpy(), expected(plain))
    turned = {n: x.t().contiguous().t() if x.dim() == 2 else x for n, x in tensors.items()}
    np.testing.assert_array_equal(coda.loads(KERNEL).k(**turned).y.numpy(), expected(plain))
    assert isinstance(coda.loads(KERNEL).k.interpret(**tensors).y, np.ndarray)


def test_tensors_and_updates_in_place() -> None:
    text = "map f<M, N>(x: bf16[M, N], inout d: bf16[M, N]) -> (y: f32[M, N]) { d +<- x  y <- x }"
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    d = torch.full((3, 4), 2, dtype=torch.bfloat16)
    out = coda.loads(text).f(x=x, d=d)
    assert out.d is d
    assert (d == 3).all()
    assert (out.y == 1).all()


class DLPackOnly:
    """Memory that only speaks DLPack."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._x.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


def test_dlpack_in() -> None:
    plain = arguments()
    given = {n: DLPackOnly(to_torch(x)) for n, x in plain.items()}
    np.testing.assert_array_equal(run(**given).y, expected(plain))


# -- what a call computes ----------------------------------------------------------------------------------------------


def test_outputs_that_are_asked_for() -> None:
    plain = arguments()
    assert list(run(**plain).keys()) == ["y", "m"]
    assert list(run(**plain, outputs=["z"]).keys()) == ["z"]
    assert list(run(**plain, outputs=("m", "y", "z")).keys()) == ["y", "z", "m"]
    y, m = run(**plain)
    assert y.shape == (M, N)
    assert m.shape == (M, 1)
    with pytest.raises(AttributeError, match="no output `z` was computed"):
        _ = run(**plain).z


def test_out_shapes() -> None:
    shapes = coda.loads(KERNEL).k.out_shapes(**arguments(), outputs=["y", "z", "m"], tile=(4, 4))
    assert {n: (s.shape, s.dtype) for n, s in shapes.items()} == {
        "y": ((M, N), "f32"), "z": ((M, N), "bf16"), "m": ((M, 3), "f32"),
    }  # fmt: skip


def test_an_accumulator_in_place_of_the_product() -> None:
    plain = arguments()
    acc = np.random.default_rng(1).standard_normal((M, N)).astype(np.float32)
    k = coda.loads(KERNEL).k
    rest = {n: x for n, x in plain.items() if n not in "ab"}
    product = acc * plain["s"][:, None] + plain["c"] * plain["w"]
    want = np.where(plain["p"], product, plain["i"][:, None].astype(np.float32))
    np.testing.assert_array_equal(k.interpret(**plain, acc=acc).y, want)
    np.testing.assert_array_equal(k.interpret(**rest, acc=acc).y, want)
    np.testing.assert_array_equal(k.interpret(**rest, acc=every_second(acc)).y, want)
    np.testing.assert_array_equal(k.interpret(**rest, acc=torch.from_numpy(acc)).y, want)


def test_exact_mode_accumulates_in_f64() -> None:
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N]) {
        x = a @ b.T  y <- x - 65536.0 * 65536.0
    }"""
    a = np.ones((1, 3), ml_dtypes.bfloat16) * ml_dtypes.bfloat16(2**-20)
    b = np.array([[2.0**52, 2.0**20, 0]], ml_dtypes.bfloat16)
    a[0, 0] = 2**-20
    k = coda.loads(text).k
    assert k.interpret(a=a, b=b, exact=True).y == 1
    assert k.interpret(a=a, b=b).y == 0  # 2³² + 1 is no f32


def test_exact_mode_is_nearer_to_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((40, 512), (30, 512)))
    text = """kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N]) {
        x = a @ b.T  y <- silu(x) * x / 3.0
    }"""
    k = coda.loads(text).k
    wide = torch.from_numpy(a.astype(np.float64)) @ torch.from_numpy(b.astype(np.float64)).T
    want = (torch.nn.functional.silu(wide) * wide / 3).numpy()
    exact = np.abs(k.interpret(a=a, b=b, exact=True).y - want)
    assert (exact <= 2.0**-23 * np.abs(want) + 1e-30).all()
    assert np.abs(k.interpret(a=a, b=b).y - want).sum() > exact.sum()


# -- aliases -----------------------------------------------------------------------------------------------------------

TILE = "map f<M, N>(x: f32[M, N], y: f32[M, N], v: f32[N]) -> (p: f32[M, N], q: f32[M, N], h: f32[M, N/2]) {\n"
TILE += "    u, w = pairs(x)  p <- x - y * v  q <- y - x  h <- u - w\n}"


@pytest.mark.parametrize("strip", [1 << 18, 1])
def test_an_output_may_be_a_tile_input(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STRIP_ELEMENTS", strip)  # rows are then written before later ones are read
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((3, 4), np.float32)
    v = np.arange(4, dtype=np.float32)
    want = coda.loads(TILE).f(x=x, y=y, v=v)
    given = x.copy(), y.copy()
    got = coda.loads(TILE).f(x=given[0], y=given[1], v=v, out={"p": given[0], "q": given[1]})
    for n in ("p", "q", "h"):
        np.testing.assert_array_equal(got[n], want[n])


@pytest.mark.parametrize("strip", [1 << 18, 1])
@pytest.mark.parametrize(("read", "stored"), [("f16", "bf16"), ("bf16", "f16"), ("i32", "f32"), ("f8e4m3", "f8e5m2")])
def test_an_output_may_be_a_tile_input_of_another_type(
    read: str, stored: str, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbours of an element are read as what they were, whatever their memory holds when it is their turn."""
    monkeypatch.setattr(run_module, "STRIP_ELEMENTS", strip)
    text = f"map f<M, N>(x: {read}[M, N]) -> (y: {stored}[M, N], h: f32[M, N/2], s: f32[M, tiles(N)]) {{\n"
    text += f"    v = {'f32(x)' if read == 'i32' else 'x'}  u, w = pairs(v)  y <- v * 3.0  h <- u - 2.0 * w\n"
    f = coda.loads(text + "    s <- tile_sum(v, over=N)\n}").f
    whole = np.arange(32).reshape(4, 8).astype(STORAGE[read])
    x = whole[:3, :6]  # rows that do not follow one another
    numbers = x.astype(np.float32)
    got = f(x=x, out={"y": whole.view(STORAGE[stored])[:3, :6]})
    np.testing.assert_array_equal(got.y, (3 * numbers).astype(STORAGE[stored]))
    np.testing.assert_array_equal(got.h, numbers[:, 0::2] - 2 * numbers[:, 1::2])
    np.testing.assert_array_equal(got.s[:, 0], numbers.sum(1))
    np.testing.assert_array_equal(whole.view(np.uint8)[3], np.arange(24, 32).astype(STORAGE[read]).view(np.uint8))
    assert np.shares_memory(got.y, whole)


def test_autograd_knows_what_was_written() -> None:
    """What it saved of a tensor that a call writes is refused, as with PyTorch's own updates in place."""
    module = coda.loads("""
    map add<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () { d +<- x }
    map copy<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x }
    """)
    for write in (
        lambda x, t: module.add(x=x, d=t),
        lambda x, t: module.copy(x=x, out={"y": t}),
    ):
        leaf = torch.ones(2, 2, requires_grad=True)
        saved = leaf * 3
        loss = (saved * saved).sum()
        with torch.no_grad():
            write(torch.ones(2, 2), saved)
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()
    with torch.inference_mode():
        module.copy(x=torch.ones(2, 2), out={"y": torch.zeros(2, 2)})


def test_a_given_output_is_the_result_whatever_its_library() -> None:
    copy = coda.loads("map copy<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x }").copy
    x = np.ones((2, 2), np.float32)
    for y in (np.zeros((2, 2), np.float32), torch.zeros(2, 2)):
        for given in (x, torch.from_numpy(x)):
            found = copy(x=given, out={"y": y})
            assert found.y is y
            assert (np.asarray(y) == 1).all()


def test_an_output_that_requires_a_gradient() -> None:
    copy = coda.loads("map copy<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x }").copy
    y = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(ArgumentError, match="out `y` requires a gradient"):
        copy(x=torch.ones(2, 2), out={"y": y})
    with torch.no_grad():
        copy(x=torch.ones(2, 2), out={"y": y})
    assert y.tolist() == [[1, 1], [1, 1]]


def test_the_memory_of_torch_tensors_of_two_types() -> None:
    f = coda.loads("map f<M, N>(x: f16[M, N]) -> (y: bf16[M, N]) { y <- x * 3.0 }").f
    x = torch.arange(12).reshape(3, 4).half()
    place = x.view(torch.bfloat16)
    assert f(x=x, out={"y": place}).y is place
    assert torch.equal(place.float(), 3 * torch.arange(12).reshape(3, 4).float())


def test_aliases_of_other_sizes_are_refused() -> None:
    f = coda.loads("map f<M, N>(x: f32[M, N]) -> (y: bf16[M, N]) { y <- x }").f
    x = np.zeros((4, 4), np.float32)
    halves = x.view(ml_dtypes.bfloat16)
    for y in (halves[:, ::2], halves[:, :4]):  # at the same addresses, and at the same strides
        with pytest.raises(ArgumentError, match="tile input of the same layout and element size"):
            f(x=x, out={"y": y})


def test_aliases_that_are_refused() -> None:
    x, y = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    v = np.zeros(4, np.float32)
    f = coda.loads(TILE).f
    big = np.zeros((8, 4), np.float32)
    for out, pattern in (
        (
            {"p": x.T},
            "`p` shares memory with input `x`: an output may alias only a tile input of the same "
            "layout and element size",
        ),
        ({"p": x[::-1]}, "`p` shares memory with input `x`"),
        ({"p": np.broadcast_to(v, (4, 4))}, "read-only"),
        ({"p": big[:4], "q": big[:4]}, "outputs `p` and `q` share memory"),
        ({"p": big[:4], "q": big[2:6]}, "outputs `p` and `q` share memory"),
        ({"h": x[:, :2]}, "`h` shares memory with input `x`"),
    ):
        with pytest.raises(ArgumentError, match=pattern):
            f(x=x, y=y, v=v, out=out)
    with pytest.raises(ArgumentError, match="`p` shares memory with input `v`"):
        f(x=x, y=y, v=big[0], out={"p": big[:4]})
    f(x=x, y=y, v=v, out={"p": big[:4], "q": big[4:]})  # neighbours
    f(x=x, y=x, v=v)  # inputs may share


def test_operands_and_outputs_do_not_share() -> None:
    text = "kernel k<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (y: bf16[M, N]) { y <- a @ b.T }"
    a = np.ones((4, 4), ml_dtypes.bfloat16)
    with pytest.raises(ArgumentError, match="`y` shares memory with input `a`"):
        coda.loads(text).k(a=a, b=a.copy(), out={"y": a})


def test_a_refused_call_changes_nothing() -> None:
    text = "map f<M, N>(x: f32[M, N], inout d: f32[M, N], w: f32[N]) -> (y: f32[M, N]) { d +<- x  y <- x * w }"
    d, y = np.zeros((2, 4), np.float32), np.full((2, 4), 7, np.float32)
    with pytest.raises(ArgumentError):
        coda.loads(text).f(x=np.ones((2, 4), np.float32), d=d, w=np.ones(3, np.float32), out={"y": y})
    assert (d == 0).all()
    assert (y == 7).all()


@pytest.mark.parametrize("layout", [every_second, column_major, reversed_strides])
def test_updates_in_place_reach_the_callers_array(layout: Any) -> None:
    text = "map f<M, N>(x: f32[M, N], inout d: f16[M, N/2]) -> () { u, v = pairs(x)  d +<- u * v }"
    x, d = np.arange(12, dtype=np.float32).reshape(3, 4), layout(np.ones((3, 2), np.float16))
    out = coda.loads(text).f(x=x, d=d)
    assert out.d is d
    np.testing.assert_array_equal(d, 1 + x[:, 0::2] * x[:, 1::2])


@pytest.mark.parametrize("layout", [big_endian, in_a_record])
def test_updates_in_place_are_never_made_on_a_copy(layout: Any) -> None:
    text = "map f<M, N>(x: f32[M, N], inout d: f32[M, N]) -> () { d +<- x }"
    x = np.ones((3, 4), np.float32)
    with pytest.raises(ArgumentError, match="`d` is updated in place: it must have native byte order"):
        coda.loads(text).f(x=x, d=layout(np.ones((3, 4), np.float32)))


# -- domains and warnings ----------------------------------------------------------------------------------------------

DOMAINS = """map f<M, N>(
    x: f32[M, N], r: f32[M] > 0, s: bf16[M] >= 0, t: i32[M] in 0..N or skip, q: f32[N] in -1..1, n: i64 < 8 = 3,
    skip: i64 = -1,
) -> (y: f32[M, N]) { y <- x * r + s * q + f32(n) + onehot(t) }"""


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("r", np.array([1, 0, 1]), r"`r` holds 0.0 at \[1\], outside its domain `r > 0`"),
        ("r", np.array([1, 1, np.nan]), r"`r` holds nan at \[2\]"),
        ("s", np.array([1, 1, -1]), r"`s` holds -1.0 at \[2\], outside its domain `s >= 0`"),
        ("t", np.array([0, 4, -1]), r"`t` holds 4 at \[1\], outside its domain `t in 0..N or skip`"),
        ("t", np.array([0, 3, -2]), r"`t` holds -2 at \[2\]"),
        ("q", np.array([-1, 0, 0.5, 1]), r"`q` holds 1.0 at \[3\], outside its domain `q in -1..1`"),
        ("n", 8, r"`n` holds 8, outside its domain `n < 8`"),
    ],
)
def test_domains(name: str, value: Any, shown: str) -> None:
    fine: dict[str, Any] = {
        "x": np.zeros((3, 4), np.float32),
        "r": np.full(3, 1e-45, np.float32),
        "s": np.zeros(3, ml_dtypes.bfloat16),
        "t": np.array([0, 3, -1], np.int32),
        "q": np.array([-1, 0, 0.5, 0.999], np.float32),
    }
    f = coda.loads(DOMAINS).f
    f(**fine, check=True)
    f(**(fine | {"t": np.array([0, 3, 9], np.int32)}), skip=9, check=True)
    wrong = fine | {name: value.astype(fine[name].dtype) if name != "n" else value}
    f(**wrong)  # not verified unless it is asked for
    with pytest.raises(ArgumentError, match=shown):
        f(**wrong, check=True)
    with pytest.raises(ArgumentError, match=shown):
        f.interpret(**wrong, check=True)


@pytest.mark.parametrize("seed", range(60))
def test_no_warning_leaks(seed: int) -> None:
    """Programs on NaN, infinities and subnormals, with warnings as errors."""
    program = coda.loads(random_program(seed)).program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = random_call(program.ir, seed, "special")
    program.interpret(**call.copy(), tile=call.tile, outputs=call.outputs)
    program.interpret(**call.copy(), tile=call.tile, outputs=call.outputs, exact=True)
    program(**call.copy())


def test_no_warning_for_signalling_nans_and_every_bit_pattern() -> None:
    text = """map f<M, N>(x: bf16[M, N] > 0, y: f16[M, N], z: f8e5m2[M, N]) -> (a: f32[M, N], b: f8e4m3[M, N]) {
        a <- x + y * z  b <- exp(x) / y
    }"""
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    given = {"x": every.view(ml_dtypes.bfloat16), "y": every.view(np.float16),
             "z": every.astype(np.uint8).view(ml_dtypes.float8_e5m2)}  # fmt: skip
    f = coda.loads(text).f
    f(**given)
    f.interpret(**given, exact=True)
    with pytest.raises(ArgumentError, match="outside its domain"):
        f(**given, check=True)
    signalling = np.array([[0x7F800001]], np.uint32).view(np.float32)
    text = "map f<M, N>(x: f32[M, N]) -> (y: bf16[M, N], z: f16[M, N], w: f8e4m3[M, N]) { y <- x  z <- x  w <- x }"
    one = coda.loads(text).f
    out = one(x=signalling)
    assert all(np.isnan(v.astype(np.float32)).all() for v in out.values())
