"""Random data made from signatures: lengths that divide, elements inside their domains, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.api import Program
from coda_lang.data import choose_sizes, draw
from coda_lang.errors import ArgumentError


def _kernel(signature: str, body: str = "z <- a @ b.T", axes: str = "M, N, K") -> Program:
    return coda.loads(f"kernel k<{axes}>({signature}) -> (z: f32[M, N]) {{ {body} }}").k


def _map(axes: str, inputs: str, output: str = "z: f32[M, N]", body: str = "z <- 1.0") -> Program:
    return coda.loads(f"map k<{axes}>({inputs}) -> ({output}) {{ {body} }}").k


AB = "a: bf16[M, K], b: bf16[N, K]"


def test_sizes_divide() -> None:
    ir = _map("M, N", "x: f32[M, N/2], y: f32[N/3]").ir
    assert choose_sizes(ir)["N"] % 6 == 0
    assert choose_sizes(ir, {"N": 12}) == {"M": 256, "N": 12}
    assert choose_sizes(ir, None, {"x": (5, 9)}) == {"M": 5, "N": 18}


@given(st.sampled_from(["", "H", "D", "N"]), st.integers(1, 50))
def test_split_axes_multiply(fixed: str, factor: int) -> None:
    ir = _map("M, N = H * D", "x: f32[M, H], w: f32[D/2], v: f32[D]", "z: f32[M, N]").ir
    length = factor * (2 if fixed in ("D", "N") else 1)
    sizes = choose_sizes(ir, {fixed: length} if fixed else {})
    assert sizes["N"] == sizes["H"] * sizes["D"]
    assert sizes["D"] % 2 == 0
    assert not fixed or sizes[fixed] == length
    draw(ir, sizes={fixed: length} if fixed else {})


def test_split_into_a_number() -> None:
    assert choose_sizes(_map("M, N = 3 * D", "w: f32[D/2]").ir)["N"] % 6 == 0
    sizes = choose_sizes(_map("M, N = H * 5", "w: f32[M, H], v: f32[M, N/2]").ir)
    assert sizes["N"] == 5 * sizes["H"]
    assert sizes["N"] % 2 == 0


def test_sizes_that_a_domain_needs() -> None:
    assert choose_sizes(_kernel(AB + ", t: i32[M] in 3000..N").ir)["N"] > 3000


@pytest.mark.parametrize(
    ("declared", "ok"),
    [
        ("x: f32[M] > 0", lambda x: (x > 0).all()),
        ("x: f16[M] > 0", lambda x: (x > 0).all()),
        ("x: f8e4m3[M] > 0", lambda x: (x > 0).all()),
        ("x: bf16[M] >= 0", lambda x: (x >= 0).all()),
        ("x: bf16[M] < 1000", lambda x: (x < 1000).all()),
        ("x: bf16[M] in 0..1", lambda x: ((x >= 0) & (x < 1)).all()),
        ("x: f8e5m2[M] in -1..0", lambda x: ((x >= -1) & (x < 0)).all()),
        ("x: f32[M] > 100000000", lambda x: (x > 1e8).all()),
        ("x: bf16[M] > 255", lambda x: (x > 255).all()),
        ("x: i32[M] in 0..N", lambda x: ((x >= 0) & (x < 512)).all() and x.max() > 400),
        ("x: i32[M] in 0..N/2", lambda x: ((x >= 0) & (x < 256)).all()),
        ("x: i32[M] > 5", lambda x: (x > 5).all()),
        ("x: i64[M] < 5", lambda x: (x < 5).all()),
        ("x: i64[M] in 7..8", lambda x: (x == 7).all()),
        ("x: i64[M] >= 9223372036854775807", lambda x: (x == 2**63 - 1).all()),
        ("x: i32[M] in -3000000000..3000000000", lambda x: x.min() < -(2**30)),
        ("x: i64[M] in 0..N or skip, skip: i64 = -7", lambda x: (x == -7).any() and (x >= -7).all()),
        ("x: f32[M]", lambda x: abs(x.mean()) < 0.5 and 0.8 < x.std() < 1.2),
        ("x: bool[M]", lambda x: x.any() and not x.all()),
    ],
)
def test_elements_lie_in_their_domain(declared: str, ok: object) -> None:
    program = _kernel(f"{AB}, {declared}")
    for seed in range(3):
        drawn = draw(program.ir, seed=seed)
        x = drawn.arguments["x"]
        wide = x.astype(np.float64) if x.dtype.kind == "V" or (x.dtype.itemsize < 4 and x.dtype.kind == "f") else x
        assert ok(wide)  # type: ignore[operator]
        program.interpret(**drawn.arguments, check=True)


def test_an_empty_domain_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no i32 lies in the domain of `x`"):
        draw(_kernel(f"{AB}, x: i32[M] in 0..N").ir, sizes={"N": 0})
    with pytest.raises(ArgumentError, match="no f32 lies in the domain of `s`"):
        draw(_kernel(f"{AB}, s: f32 in N..2").ir)
    assert draw(_kernel(f"{AB}, x: i32[M] in 0..N").ir, sizes={"N": 0, "M": 0}).arguments["x"].shape == (0,)


def test_the_product_is_near_one() -> None:
    program = _kernel(AB)
    for k in (1, 64, 4096):
        z = program.interpret(**draw(program.ir, sizes={"K": k}).arguments).z
        assert 0.8 < z.std() < 1.2


def test_data_depend_on_seed_name_and_shape_only() -> None:
    program = _kernel(f"{AB}, s: f32, bias: f32[N] = 0", "z <- a @ b.T + bias + s")
    first, again = draw(program.ir, seed=1), draw(program.ir, seed=1, optional=["bias"], given={"s": 3.0})
    np.testing.assert_array_equal(first.arguments["a"], again.arguments["a"])
    assert (first.arguments["a"] != draw(program.ir, seed=2).arguments["a"]).any()
    assert "bias" not in first.arguments
    assert first.random == ("a", "b", "s")
    assert again.random == ("a", "b", "bias")
    assert again.arguments["s"] == 3.0


def test_axes_that_no_shape_fixes_are_passed() -> None:
    program = coda.loads(
        "reduce r<M, N>(x: f32[M, tiles(N)], e: f32) -> (y: f32[M]) { y <- sum(x, over=tiles(N)) / N + e }"
    ).r
    drawn = draw(program.ir, sizes={"N": 1000}, tile=(16, 100))
    assert drawn.arguments["x"].shape == (256, 10)
    assert drawn.arguments["N"] == 1000
    assert "M" not in drawn.arguments
    program.interpret(**drawn.arguments)


def test_wrong_names() -> None:
    ir = _kernel(AB).ir
    for wrong in ({"sizes": {"Q": 1}}, {"dtypes": {"T": "f16"}}, {"given": {"c": 1}}, {"optional": ["c"]}):
        with pytest.raises(ArgumentError, match="k: no "):
            draw(ir, **wrong)  # type: ignore[arg-type]


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    draw(_kernel(AB).ir, sizes={"M": 2, "N": 3, "K": 4}, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8, 20), (20, 20)]
