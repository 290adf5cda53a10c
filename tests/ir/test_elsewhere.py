"""What is advised for functions of other languages is right: it checks, and computes what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang.ir.elsewhere import DEFINED, WRITTEN, advice

X = np.array([[-(2**22), -7.5, -2.5, -1.5, -1.0, -0.5, -0.25], [0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 4194303.5]], np.float32)
Array = np.ndarray[Any, Any]


def run(expression: str, before: str = "") -> Array:
    text = f"""{before}
    map f<M, N>(x: f32[M, N], y: f32[N], lo: f32, hi: f32) -> (out: f32[M, N]) {{
        v = {expression}
        out <- v
    }}"""
    with np.errstate(all="ignore"):
        found: Array = coda.loads(text).f(x=X, y=np.full(7, 2, np.float32), lo=-1.0, hi=2.0)["out"]
    return found


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_is_written_instead_checks(name: str) -> None:
    written = WRITTEN[name]
    boolean = name.startswith("is")
    assert run(f"f32({written})" if boolean else written).shape == X.shape
    assert advice(name, "map") == f"write `{written}`"


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("sign", np.sign),
        ("expm1", np.expm1),
        ("log10", np.log10),
        ("sinh", np.sinh),
        ("exp10", lambda x: 10.0**x),
        ("hardsigmoid", lambda x: np.clip((x + 3) / 6, 0, 1)),
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("logsigmoid", lambda x: -np.logaddexp(0, -x)),
        ("isnan", lambda x: np.isnan(x).astype(float)),
    ],
)
def test_what_it_computes(name: str, meaning: Callable[[Array], Array]) -> None:
    with np.errstate(all="ignore"):
        want = meaning(X.astype(np.float64)).astype(np.float32)
    found = run(f"f32({WRITTEN[name]})" if name == "isnan" else WRITTEN[name])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "meaning"), [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("rint", np.rint)]
)
def test_functions_that_a_file_can_define(name: str, meaning: Callable[[Array], Array]) -> None:
    np.testing.assert_array_equal(run(f"{name}(x)", DEFINED[name]), meaning(X))
    assert DEFINED[name] in (advice(name, "kernel") or "")


def test_advice_fits_the_kind_of_program() -> None:
    assert advice("absmax", "kernel") == "write `tile_absmax(x, over=N)`"
    assert advice("absmax", "reduce") == "write `max(abs(x), over=N)`"
    assert advice("sin", "map") == "there is no `sin`: compute a table of it before, and pass that as an input"
    assert advice("no_such_function", "map") is None
