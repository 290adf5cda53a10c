"""Random blocks against the same calls made one after another from Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.parser import parse
from coda_lang.parser.format import format_text

LIBRARY = """
map shifted<M, N>(x: f32[M, N], r: f32[M] = 0, alpha: f32 = 1) -> (y: f32[M, N], s: f32[M, tiles(N)], w: f32[M, N]?) {
    v = alpha * x + r
    y <- v
    s <- tile_sum(v, over=N)
    w <- -v
}
map narrowed<M, N>(x: f32[M, N], y: f32[M, N]) -> (b: bf16[M, N]) { b <- 0.125 * (x + y) }
kernel product<M, N, K>(a: bf16[M, K], b: bf16[N, K], c: f32[M, N] = 0) -> (d: f32[M, N], q: f32[M, tiles(N)]?) {
    d = a @ b.T + c
    d <- d
    q <- tile_max(d, over=N)
}
map grow<M, N>(x: f32[M, N], inout sum: f32[M, N]) -> () { sum +<- x }
reduce mean<M, N>(s: f32[M, tiles(N)]) -> (t: f32[M]) { t <- sum(s, over=tiles(N)) / N }
reduce largest<M, N>(s: f32[M, tiles(N)], least: f32 = -100) -> (t: f32[M]) { t <- max(max(s, over=tiles(N)), least) }
"""
KERNELS = coda.loads(LIBRARY)
TILE = (4, 8)


@dataclass
class Made:
    """A block's text, and the same calls as Python functions of what is known by name."""

    lines: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    wide: list[str] = field(default_factory=lambda: ["x", "v"])  # f32[M, N]
    narrow: list[str] = field(default_factory=lambda: ["a"])  # bf16[M, N]
    rows: list[str] = field(default_factory=lambda: ["r"])  # f32[M]
    parts: list[str] = field(default_factory=list)  # f32[M, tiles(N)]
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"h{self.count}"


@st.composite
def blocks(draw: st.DrawFn) -> Made:
    made = Made()

    def pick(names: list[str]) -> str:
        return draw(st.sampled_from(names))

    def call(kernel: str, arguments: dict[str, str], numbers: dict[str, float], results: dict[str, str]) -> None:
        given = ", ".join([f"{p}={n}" for p, n in arguments.items()] + [f"{p}={x}" for p, x in numbers.items()])
        bound = ", ".join(results.values())
        made.lines.append(f"{bound} = {kernel}({given})" if results else f"{kernel}({given})")
        made.calls.append((kernel, dict(arguments), dict(numbers), dict(results)))

    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["shifted", "shifted", "narrowed", "product", "grow", "mean", "largest"]))
        if kind == "shifted":
            arguments = {"x": pick(made.wide)} | ({"r": pick(made.rows)} if draw(st.booleans()) else {})
            y, s = made.name(), made.name()
            results = {"y": y, "s": s}
            if draw(st.booleans()):
                results["w"] = made.name()
                made.wide.append(results["w"])
            call(kind, arguments, {"alpha": draw(st.sampled_from([0.5, 2.0, -1.0]))}, results)
            made.wide.append(y)
            made.parts.append(s)
        elif kind == "narrowed":
            b = made.name()
            call(kind, {"x": pick(made.wide), "y": pick(made.wide)}, {}, {"b": b})
            made.narrow.append(b)
        elif kind == "product":
            d = made.name()
            arguments = {"a": pick(made.narrow), "b": "w"} | ({"c": pick(made.wide)} if draw(st.booleans()) else {})
            results = {"d": d}
            if draw(st.booleans()):
                results["q"] = made.name()
                made.parts.append(results["q"])
            call(kind, arguments, {}, results)
            made.wide.append(d)
        elif kind == "grow":
            call(kind, {"x": pick(made.wide), "sum": "total"}, {}, {})
        elif made.parts:
            t = made.name()
            call(kind, {"s": pick(made.parts)}, {}, {"t": t})
            made.rows.append(t)
    for names, output in ((made.wide[2:], "y"), (made.rows[1:], "t"), (made.narrow[1:], "b")):
        if names:
            made.lines.append(f"{output} <- {names[-1]}")
    return made


def text(made: Made, by: str = "") -> str:
    types = {"y": "f32[M, N]", "t": "f32[M]", "b": "bf16[M, N]"}
    outputs = ", ".join(f"{line[0]}: {types[line[0]]}" for line in made.lines if line[1:4] == " <-")
    body = "\n".join(f"    {line}" for line in made.lines)
    inputs = "x: f32[M, N], v: f32[M, N], a: bf16[M, N], w: bf16[N, N], r: f32[M], inout total: f32[M, N]"
    return f"{LIBRARY}\nblock b<M{by}, N>({inputs}) -> ({outputs}) {{\n{body}\n}}\n"


def arguments(rows: int, columns: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows * 100 + columns)
    from coda_lang.ir.numerics import STORAGE

    def whole(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(np.float32)

    bf16 = STORAGE["bf16"]
    return {"x": whole(rows, columns), "v": whole(rows, columns), "a": whole(rows, columns).astype(bf16),
            "w": whole(columns, columns).astype(bf16), "r": whole(rows), "total": whole(rows, columns)}  # fmt: skip


def one_by_one(made: Made, known: dict[str, Any], columns: int) -> dict[str, Any]:
    for kernel, passed, numbers, results in made.calls:
        program = KERNELS[kernel]
        axes = {"N": columns} if program.kind == "reduce" and kernel == "mean" else {}
        out = program.interpret(
            **{p: known[n] for p, n in passed.items()}, **numbers, **axes, tile=TILE, outputs=list(results)
        )
        known |= {n: out[o] for o, n in results.items()}
    return known


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@settings(max_examples=150, deadline=None)
@given(blocks(), st.integers(0, 9), st.sampled_from([2, 6, 8, 20]))
def test_a_block_is_its_calls(made: Made, rows: int, columns: int) -> None:
    source = text(made)
    assert parse(format_text(source)) == parse(source)
    given_, separate = arguments(rows, columns), arguments(rows, columns)
    out = coda.loads(source).b.interpret(**given_, tile=TILE)
    known = one_by_one(made, separate, columns)
    for line in made.lines:
        output, arrow, value = line.partition(" <- ")
        if arrow:
            same(out[output], known[value])
    same(given_["total"], separate["total"])


@settings(max_examples=60, deadline=None)
@given(blocks(), st.integers(0, 9), st.integers(1, 5))
def test_pieces_give_the_same(made: Made, rows: int, piece: int) -> None:
    """Every step works row by row, so cutting the rows changes nothing."""
    whole, cut = arguments(rows, 8), arguments(rows, 8)
    out = coda.loads(text(made)).b.interpret(**whole, tile=TILE)
    pieces = coda.loads(text(made, f" by {piece}")).b.interpret(**cut, tile=TILE)
    for name, x in out.items():
        same(pieces[name], x)
