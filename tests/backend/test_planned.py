"""Prepared calls of programs, on a driver that only records: what is asked for, and arrays that change between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import coda_lang as coda
from coda_lang import arrays
from coda_lang.backend_cutlass import driver, program
from coda_lang.backend_cutlass.abi import Pointer, TensorMap
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.launch import Launchable
from coda_lang.errors import ArgumentError
from coda_lang.program import Program
from coda_lang.tuning import lookup

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch: pytest.MonkeyPatch, cuda: Any, machine: Any, fake_cubin: Cubin, fake_library: Any) -> None:
    """Kernels compile to nothing, and launches are recorded."""

    def compile_kernel(emitted: Any, arch: str, **more: Any) -> Cubin:
        cuda.block_bytes = emitted.params_bytes
        return fake_cubin

    monkeypatch.setattr(program, "compile_kernel", compile_kernel)
    monkeypatch.setattr(program, "Launchable", lambda cubin, emitted: Launchable(cubin, emitted, *machine))
    monkeypatch.setattr(driver, "load", lambda: machine[0])
    monkeypatch.setattr(lookup, "enabled", lambda: False)


def of(text: str) -> Program:
    found = coda.loads(text)["k"]
    assert isinstance(found, Program)
    return found


# -- what is asked for -------------------------------------------------------------------------------------------------

OPTIONAL = [
    "map k<M, N>(x: f32[M, N]) -> (y: f32[M, N]?) { y <- x }",
    "reduce k<M, N>(x: f32[M, N]) -> (y: f32[M]?) { y <- sum(x, over=N) }",
    "kernel k<M, N, K>(x: bf16[M, K], b: bf16[N, K]) -> (y: f32[M, N]?) { y <- x @ b.T }",
]


@pytest.mark.parametrize("text", OPTIONAL)
def test_a_kernel_that_writes_nothing_is_refused(text: str, on_gpu: Make) -> None:
    k = of(text)
    dtype = "bf16" if k.kind == "kernel" else "f32"
    there: dict[str, Any] = {n: on_gpu((64, 64), dtype) for n in ("x", "b")[: len(k.ir.params)]}
    here: dict[str, Any] = {n: x.data for n, x in there.items()}
    wrong = pytest.raises(ArgumentError, match="k: nothing is asked for: name some of its `outputs`")
    asked: Any
    for asked in (None, []):
        with wrong:
            k.compile(outputs=asked)
        with wrong:
            k(**there, outputs=asked)
        with wrong:
            k.plan(**there, outputs=asked)
        assert not len(k.interpret(**here, outputs=asked))
    assert k.compile(outputs=["y"]).source


def test_what_is_updated_in_place_need_not_be_asked_for() -> None:
    text = "map k<M, N>(x: f32[M, N], inout w: f32[M, N]) -> (y: f32[M, N]?) { w +<- x  y <- x }"
    assert "Store_w" in of(text).compile().source


def test_the_tap_needs_no_output_that_reads_the_accumulator() -> None:
    assert "using Tap" in of(OPTIONAL[2]).compile(tap=True).source
    text = "kernel k<M, N, K>(x: bf16[M, K], b: bf16[N, K], c: f32[M, N]) -> (y: f32[M, N]?, z: f32[M, N])"
    assert "using Tap" in of(text + " { y <- x @ b.T  z <- c }").compile(tap=True).source


# -- arrays that change between runs -----------------------------------------------------------------------------------

MAP = "map k<M, N>(x: f32[M, N], w: f32[N], inout v: f32[M, N]) -> (x: f32[M, N], y: f32[M, N]) {"
MAP += " x <- x * w  y <- x + 1.0  v +<- x }"


def planned(on_gpu: Make, m: int = 64, n: int = 64) -> tuple[Any, dict[str, Any]]:
    given = {"x": on_gpu((m, n)), "w": on_gpu((n,)), "v": on_gpu((m, n))}
    return of(MAP).plan(**given), given


def pointed(plan: Any, cuda: Any) -> dict[str, int]:
    """The address of each tensor in the block of the last launch: of a descriptor, its first word."""
    fields = [f for f in plan._built.emitted.fields if isinstance(f.source, (Pointer, TensorMap))]
    block = cuda.launches[-1].block
    return {f.source.tensor: int.from_bytes(block[f.offset : f.offset + 8], "little") for f in fields}


def address(array: Any) -> int:
    found: int = array.view().pointer
    return found


def test_a_bound_output_is_what_a_run_returns(on_gpu: Make, cuda: Any) -> None:
    plan, given = planned(on_gpu)
    first = dict(plan())
    assert first["v"] is given["v"]
    new = {"x": on_gpu((64, 64)), "x'": on_gpu((64, 64)), "y": on_gpu((64, 64)), "v": on_gpu((64, 64))}
    plan.bind(new)
    results = plan()
    assert list(results) == ["v", "x", "y"]
    assert results["x"] is new["x'"]
    assert results["y"] is new["y"]
    assert results["v"] is new["v"]
    assert plan.outputs is results
    assert pointed(plan, cuda) == {"w": address(given["w"])} | {n: address(x) for n, x in new.items()}
    plan.bind({"y": first["y"]})
    assert plan()["y"] is first["y"]
    assert plan()["x"] is new["x'"]


def test_the_results_of_an_earlier_run_stay_what_they_were(on_gpu: Make) -> None:
    plan, _ = planned(on_gpu)
    first = plan()
    y = first["y"]
    plan.bind({"y": on_gpu((64, 64))})
    assert first["y"] is y
    assert plan()["y"] is not y


def on_device(on_gpu: Make, x: Any, device: int) -> Any:
    made = on_gpu(x.shape, device=device)
    made.data[...] = x
    return made


def read_only(on_gpu: Make) -> Any:
    made = on_gpu((64, 64))
    made.data.flags.writeable = False
    return made


@pytest.mark.parametrize("name", ["y", "x'", "v"])
def test_what_is_written_is_not_bound_to_a_read_only_array(name: str, on_gpu: Make) -> None:
    plan, _ = planned(on_gpu)
    before = plan()
    with pytest.raises(ArgumentError, match=f"k: `{name}` is read-only, and the kernel writes it"):
        plan.bind({"w": on_gpu((64,)), name: read_only(on_gpu)})
    assert plan() is before
    plan.bind({"x": read_only(on_gpu)})


def test_bound_arrays_may_not_share_memory_as_those_of_a_call_may_not(on_gpu: Make, cuda: Any) -> None:
    plan, _ = planned(on_gpu)
    outputs = plan()
    places = pointed(plan, cuda)
    rows = on_gpu((65, 64))
    for bound, text in [
        ({"y": outputs["x"]}, "outputs `x` and `y` share memory"),
        ({"y": outputs["v"]}, "outputs `y` and `v` share memory"),
        ({"x": rows[:64], "y": rows[1:]}, "`y` shares memory with input `x`"),
        ({"w": outputs["y"][0]}, "`y` shares memory with input `w`"),
    ]:
        with pytest.raises(ArgumentError, match=f"k: {text}"):
            plan.bind(bound)
        assert plan() is outputs
        assert pointed(plan, cuda) == places
    plan.bind({"x": outputs["y"]})  # a tile of the same layout: each element is read before it is written
    assert plan()["y"] is outputs["y"]


def test_a_wrong_array_leaves_the_plan_as_it_was(on_gpu: Make, cuda: Any) -> None:
    plan, _ = planned(on_gpu)
    outputs, places = plan(), pointed(plan, cuda)
    for wrong in ({"z": on_gpu((64, 64))}, {"y": on_gpu((64, 32))}, {"y": on_gpu((64, 64), device=1)}):
        with pytest.raises(ArgumentError):
            plan.bind({"x": on_gpu((64, 64)), **wrong})
        assert plan() is outputs
        assert pointed(plan, cuda) == places


VECTOR = "map k<M, N>(x: f32[M, N], c: f32[M], inout u: f32[M]) -> (z: f32[M]) { z <- c * 2.0  u +<- c }"


def test_runs_on_no_columns_follow_their_arrays(on_gpu: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tile computes them, yet outputs that do not vary along the columns have values."""
    monkeypatch.setattr(arrays, "to_device", lambda x, device, name="": on_device(on_gpu, x, device))
    c, u = on_gpu((3,)), on_gpu((3,))
    c.data[:], u.data[:] = [1, 2, 3], 10
    plan = of(VECTOR).plan(x=on_gpu((3, 0)), c=c, u=u)
    assert plan()["z"].data.tolist() == [2, 4, 6]
    assert u.data.tolist() == [11, 12, 13]
    c.data[:] = 5
    assert plan()["z"].data.tolist() == [10, 10, 10]
    z, other = on_gpu((3,)), on_gpu((3,))
    other.data[:] = 7
    plan.bind({"z": z, "c": other})
    assert plan()["z"] is z
    assert z.data.tolist() == [14, 14, 14]
