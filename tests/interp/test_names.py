"""Names of programs beside the names that Python's calls and results have of their own."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import coda_lang as coda
from coda_lang import api
from coda_lang.blocks.program import BlockProgram
from coda_lang.ir.constants import CALL_OPTIONS

ONE = np.ones((2, 4), np.float32)


def test_every_option_of_a_call_is_no_name_of_an_input() -> None:
    calls = [
        f for kind in (api.Program, BlockProgram) for f in (kind.__call__, kind.interpret, kind.plan, kind.out_shapes)
    ]
    parameters = [p for f in calls for p in inspect.signature(f).parameters.values()]
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert options == CALL_OPTIONS


@pytest.mark.parametrize("name", sorted(CALL_OPTIONS))
def test_an_input_that_no_call_could_pass_is_refused(name: str) -> None:
    text = f"map f<M, N>(x: f32[M, N], {name}: f32[M, N]) -> (y: f32[M, N]) {{ y <- x + {name} }}"
    with pytest.raises(coda.CodaError, match=r"E0117.*`k\(" + name):
        coda.loads(text)
    axis = f"map f<{name}, N>(x: f32[{name}, N]) -> (y: f32[{name}, N]) {{ y <- x }}"
    with pytest.raises(coda.CodaError, match="E0117"):
        coda.loads(axis)
    as_output = f"map f<M, N>(x: f32[M, N]) -> ({name}: f32[M, N]) {{ {name} = x + x  {name} <- {name} }}"
    np.testing.assert_array_equal(coda.loads(as_output).f(x=ONE)[name], 2 * ONE)


@pytest.mark.parametrize("name", ["self", "positional", "arguments", "name", "items", "cls", "call"])
def test_other_names_of_inputs_reach_the_program(name: str) -> None:
    text = f"map f<M, N>({name}: f32[M, N]) -> (y: f32[M, N]) {{ y <- {name} * 3.0 }}"
    f = coda.loads(text).f
    np.testing.assert_array_equal(f(**{name: ONE}).y, 3 * ONE)
    np.testing.assert_array_equal(f.interpret(**{name: ONE}).y, 3 * ONE)
    assert f.out_shapes(**{name: ONE})["y"].shape == (2, 4)


@pytest.mark.parametrize("name", ["items", "keys", "values", "get", "path", "warnings"])
def test_names_that_mappings_have_are_reached_as_items(name: str) -> None:
    text = f"map {name}<M, N>(x: f32[M, N]) -> ({name}: f32[M, N], y: f32[M, N]) {{ {name} <- x  y <- x * 2.0 }}"
    mod = coda.loads(text)
    out = mod[name](x=ONE)
    np.testing.assert_array_equal(out[name], ONE)
    np.testing.assert_array_equal(dict(out.items())["y"], 2 * ONE)


def test_a_kernel_that_a_file_lacks() -> None:
    mod = coda.loads("map half<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x / 2.0 }")
    with pytest.raises(KeyError, match="has no kernel `hlaf`: did you mean `half`"):
        mod["hlaf"]
    with pytest.raises(AttributeError, match="has no kernel `hlaf`: did you mean `half`"):
        _ = mod.hlaf
    assert mod.get("hlaf") is None
    with pytest.raises(KeyError, match="no output `z` was computed: the outputs are y"):
        mod.half(x=ONE)["z"]


@pytest.mark.parametrize(
    "signature",
    [
        "k<M, N, K; T: bf16 | f16>(a: T[M, K], b: T[N, K], inout d: f32[M, N], g: f32 = …) -> (y: T[M, N]?)",
        "k<M, N = H * D, K>(a: bf16[M, K], b: bf16[N, K], w: f32[D], inout d: f32[M, N]) -> (y: bf16[M, H])",
    ],
)
def test_a_signature_is_shown_as_it_is_written(signature: str) -> None:
    body = "y <- g * (a @ b.T)" if "g:" in signature else "h = (a @ b.T) * w  y <- segment_sum(h, over=D)"
    k = coda.loads(f"kernel {signature.replace('…', '1.0')} {{ {body}  d +<- 1.0 }}").k
    assert k.signature == signature
    assert repr(k) == f"<kernel {signature}>"


def test_a_result_shows_types_and_single_numbers() -> None:
    text = "reduce r<M>(x: f32[M]) -> (y: bf16[M], total: f32[]) { y <- x  total <- sum(x, over=M) }"
    assert repr(coda.loads(text).r(x=np.array([0.25, 2.5], np.float32))) == "Result(y: bf16[2], total: f32[] = 2.75)"
