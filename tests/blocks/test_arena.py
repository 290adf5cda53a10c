"""Temporaries: arrays that live at one time share no byte, and few bytes are taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import coda_lang as coda
from coda_lang.blocks import arena
from coda_lang.blocks.expand import Buffer, Expansion, Launch

KERNEL = coda.loads("map m<M, N>(x: f32[M, N]) -> (y: f32[M, N]) { y <- x }").m.ir


@st.composite
def expansions(draw: st.DrawFn) -> Expansion:
    """Launches in a row; each reads some arrays that were made before, and makes some."""
    made = Expansion([Buffer("x", (4, 4), "f32", "input")])
    for _ in range(draw(st.integers(1, 12))):
        known = range(len(made.buffers))
        reads = draw(st.sets(st.sampled_from(known), max_size=3))
        outputs = {}
        for o in range(draw(st.integers(1, 3))):
            shape = (draw(st.integers(0, 40)), draw(st.integers(0, 40)))
            role = draw(st.sampled_from(["temporary", "temporary", "temporary", "output"]))
            made.buffers.append(
                Buffer(f"t{len(made.buffers)}", shape, draw(st.sampled_from(["f32", "bf16", "bool"])), role)
            )
            outputs[f"o{o}"] = made.whole(len(made.buffers) - 1)
        tensors = {f"i{i}": made.whole(i) for i in reads}
        made.launches.append(Launch(KERNEL, tensors, {}, {}, outputs))
    return made


@settings(max_examples=300)
@given(expansions())
def test_no_two_live_arrays_overlap(made: Expansion) -> None:
    placed = arena.plan(made)
    alive: dict[int, list[int]] = {}
    for t, launch in enumerate(made.launches):
        for piece in (*launch.tensors.values(), *launch.outputs.values()):
            if made.buffers[piece.buffer].role == "temporary":
                alive.setdefault(piece.buffer, []).append(t)
    assert set(placed.offsets) == set(alive)
    sizes = {i: b.shape[0] * b.shape[1] * {"f32": 4, "bf16": 2, "bool": 1}[b.dtype] for i, b in enumerate(made.buffers)}
    for i in alive:
        assert placed.offsets[i] % arena.ALIGNMENT == 0
        assert placed.offsets[i] + sizes[i] <= placed.bytes
        for j in alive:
            together = alive[i][0] <= alive[j][-1] and alive[j][0] <= alive[i][-1]
            if i < j and together and sizes[i] and sizes[j]:
                a, b = placed.offsets[i], placed.offsets[j]
                assert a + sizes[i] <= b or b + sizes[j] <= a
    assert placed.live <= placed.bytes <= placed.total


def test_a_chain_takes_two_arrays() -> None:
    steps = "".join(f"    x{i + 1} = double(x{i})\n" for i in range(10))
    text = f"""
    map double<M, N>(x: f32[M, N]) -> (y: f32[M, N]) {{ y <- 2.0 * x }}
    block b<M, N>(x0: f32[M, N]) -> (y: f32[M, N]) {{
{steps}    y <- double(x10)
    }}"""
    import numpy as np

    b = coda.loads(text).b
    x = np.ones((16, 16), np.float32)
    assert (b(x0=x).y == 2.0**11).all()
    memory = b.memory(x0=x)
    assert (memory.launches, memory.bytes, memory.total) == (11, 2 * 1024, 10 * 1024)
