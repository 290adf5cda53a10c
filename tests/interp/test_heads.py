"""One number of each head meets half and double columns: at half width a head has D/2 columns, so D is even."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coda_lang as coda
from coda_lang.data import draw

HALF = {
    "meet": ("h: f32[M, H]", "o: f32[M, N/2]", "u, v = pairs(x)\no <- u * h + 0.0 * v"),
    "store": ("h: f32[M, H]", "o: f32[M, N/2]", "o <- h"),
    "gather": ("t: f32[P, H], i: i64[M] in 0..P", "o: f32[M, N/2]", "u, v = pairs(x)\no <- u * t[i, ...] + 0.0 * v"),
    "unpairs": ("y: f32[M, N/2], h: f32[M, H]", "o: f32[M, N]", "o <- unpairs(y, h) + 0.0 * x"),
    "segments": ("", "o: f32[M, H]", "u, v = pairs(x)\no <- segment_sum(u + 0.0 * v, over=D)"),
}


def program(name: str, split: str = "H * D") -> Any:
    inputs, outputs, body = HALF[name]
    axes = f"M, N = {split}" + (", P" if "P" in inputs else "")
    more = f", {inputs}" if inputs else ""
    text = body if split == "H * D" else body.replace("over=D", f"over={split[4:]}")
    return coda.loads(f"map k<{axes}>(x: f32[M, N]{more}) -> ({outputs}) {{\n{text}\n}}").k


def wanted(name: str, x: Any, arguments: dict[str, Any], heads: int) -> Any:
    rows, columns = x.shape
    half = columns // heads // 2
    wide = {n: np.repeat(a, half, 1) for n, a in arguments.items() if n == "h"}
    match name:
        case "meet":
            return x[:, ::2] * wide["h"]
        case "store":
            return wide["h"]
        case "gather":
            return x[:, ::2] * np.repeat(arguments["t"][arguments["i"]], half, 1)
        case "unpairs":
            return np.stack([arguments["y"], wide["h"]], -1).reshape(rows, columns)
    return x[:, ::2].reshape(rows, heads, half).sum(2)


def arguments(name: str, heads: int, width: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def whole(*shape: int) -> Any:
        return rng.integers(-4, 5, shape).astype(np.float32)

    given = {"x": whole(3, heads * width), "h": whole(3, heads), "t": whole(5, heads), "i": rng.integers(0, 5, 3)}
    given["y"] = whole(3, heads * width // 2)
    axes = {"D": width} if name == "segments" else {}
    return {n: a for n, a in given.items() if f"{n}:" in f"x: {HALF[name][0]}"} | axes


@pytest.mark.parametrize("name", HALF)
def test_even_heads(name: str) -> None:
    given = arguments(name, 2, 6)
    np.testing.assert_array_equal(program(name)(**given).o, wanted(name, given["x"], given, 2))


@pytest.mark.parametrize("name", HALF)
def test_odd_heads_are_refused(name: str) -> None:
    with pytest.raises(coda.ArgumentError, match=r"D must be even, got 3 \(a head in line 2|D must be even, got 3"):
        program(name)(**arguments(name, 2, 3))


@pytest.mark.parametrize("name", HALF)
def test_odd_heads_of_a_constant_width_are_refused(name: str) -> None:
    given = {n: x for n, x in arguments(name, 2, 3).items() if n != "D"}
    with pytest.raises(coda.ArgumentError, match="a head that meets half columns is even"):
        program(name, "H * 3")(**given)


@pytest.mark.parametrize("name", HALF)
def test_drawn_lengths_fit(name: str) -> None:
    k = program(name)
    for sizes in ({}, {"M": 4, "H": 3}, {"H": 5}):
        assert k(**draw(k.ir, sizes=sizes).arguments).o.shape[0] > 0
