"""Blocks on a GPU: every launch held against the reference on what it read; pieces, second calls, streams, graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_harness import device_arguments

import coda_lang as coda
from coda_lang import arrays
from coda_lang.cli import main
from coda_lang.data import draw

pytestmark = pytest.mark.gpu

FILE = Path(__file__).parents[2] / "programs" / "llama_layer.coda"
BLOCKS = ("llama_layer", "llama_first", "llama_last", "llama_layer_bwd", "llama_first_bwd", "llama_last_bwd")
SIZES = {
    "even": {"M": 384, "D": 256, "F": 512, "A": 256, "Q": 384, "C": 64, "V": 1024, "P": 128},
    "ragged": {"M": 301, "D": 200, "F": 328, "A": 72, "Q": 192, "C": 48, "V": 1003, "P": 17},
    "few rows": {"M": 1, "D": 64, "F": 96, "A": 64, "Q": 96, "C": 16, "V": 130, "P": 4},
}


def drawn(block: Any, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    known = {n: x for n, x in sizes.items() if n in block.ir.axes}
    return draw(block.ir, sizes=known, seed=seed).arguments


def host(out: Any) -> dict[str, Any]:
    return {n: arrays.to_numpy(arrays.view(x, n), n) for n, x in out.items()}


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", BLOCKS)
def test_every_launch_keeps_its_bound(
    name: str, sizes: str, dtype: str, capsys: pytest.CaptureFixture[str], record_property: Any
) -> None:
    axes = coda.load(FILE)[name].ir.axes
    dims = ",".join(f"{n}={x}" for n, x in SIZES[sizes].items() if n in axes)
    code = main([str(FILE), name, "--compare", "--json", "--dim", dims, "--dtype", f"T={dtype}"])
    lines = json.loads(capsys.readouterr().out)["compare"]
    assert code == 0, [line for line in lines if not line["ok"]]
    assert len(lines) >= len(coda.load(FILE)[name].ir.steps)
    record_property("largest share of a bound", max(line["share"] or 0 for line in lines))


def test_pieces_of_the_head() -> None:
    block = coda.load(FILE).llama_head_bwd
    arguments = drawn(block, {"M": 4500, "D": 128, "V": 520})
    want = block.interpret(**{n: np.copy(x) if isinstance(x, np.ndarray) else x for n, x in arguments.items()})
    plan = block.plan(**device_arguments(arguments))
    assert len(plan.launches) == 3 * 4
    assert plan.memory.bytes < 2 * 2048 * 520 * 2
    got = host(plan())
    for name, x in want.items():
        wide = x.astype(np.float64)
        assert np.abs(got[name].astype(np.float64) - wide).max() <= 0.02 * np.abs(wide).max(), name


def test_fifty_runs_and_new_arguments_give_the_same_bits() -> None:
    block = coda.load(FILE).llama_layer_bwd
    arguments = device_arguments(drawn(block, SIZES["ragged"]))
    first = host(block(**arguments))
    other = device_arguments(drawn(block, SIZES["ragged"], seed=1))
    block(**other)  # the same plan, pointed elsewhere
    for _ in range(50):
        again = host(block(**arguments))
        assert all(np.array_equal(first[n].view(np.uint8), again[n].view(np.uint8)) for n in first)


def test_a_graph_of_a_plan() -> None:
    torch = pytest.importorskip("torch")
    block = coda.load(FILE).llama_layer
    given = {
        n: arrays.to_torch(x).cuda() if isinstance(x, np.ndarray) else x for n, x in drawn(block, SIZES["even"]).items()
    }
    plan = block.plan(**given)
    expected = {n: x.clone() for n, x in plan().items()}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_allocated()  # the capture itself has made its random state by now
        plan()
        assert torch.cuda.memory_allocated() == before
    for x in plan.outputs.values():
        x.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(plan.outputs[n], x) for n, x in expected.items())


def test_another_stream() -> None:
    torch = pytest.importorskip("torch")
    block = coda.load(FILE).llama_layer
    given = {
        n: arrays.to_torch(x).cuda() if isinstance(x, np.ndarray) else x for n, x in drawn(block, SIZES["even"]).items()
    }
    expected = dict(block(**given).items())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = [dict(block(**given).items()) for _ in range(3)]
    torch.cuda.synchronize()
    assert all(torch.equal(out[n], x) for out in got for n, x in expected.items())
