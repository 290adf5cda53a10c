"""The benchmarks' parts that need no GPU: all variants compute the same, wrong ones end the run, and a run goes on."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_torch_llama import example

import coda_lang.torch as ct

plain_llama, measured = example("plain_llama"), example("measured")
example("train_llama")
layer, model = example("benchmark_layer"), example("benchmark_model")

TINY = plain_llama.Config(hidden=64, intermediate=96, heads=4, kv_heads=2, context=12)


@pytest.mark.parametrize("backward", [False, True])
def test_a_row_of_the_layer(backward: bool) -> None:
    """Ours is as near to f32 as PyTorch's bf16, in every output and gradient."""
    row = layer.measure(TINY, 2, backward, "cpu", ["pytorch", "liger"], rounds=2)
    ours, theirs = row["errors"]["coda_lang"], row["errors"]["pytorch"]
    assert len(ours) == (4 + 2 + 9 if backward else 4)
    for name, error in ours.items():
        assert 0 < error <= 1.3 * theirs[name] + 2**-10, name
    assert all(len(row["samples"][name]) == 2 for name in ("coda_lang", "pytorch", "products"))
    assert row["ours_ms"] > 0
    assert row["pytorch_ms"] > 0
    assert row["ratio"]["pytorch"] == pytest.approx(row["ours_ms"] / row["pytorch_ms"])
    low, high = row["ratio_interval"]["pytorch"]
    assert low <= high
    rested = row["rested"]
    assert all(len(rested["samples"][name]) == 2 for name in ("coda_lang", "pytorch", "products"))
    assert rested["ratio"]["pytorch"] == pytest.approx(rested["ours_ms"] / rested["pytorch_ms"])
    assert ("liger" in row["missing"]) == (layer.NO_LIGER is not None)


def test_the_layer_is_that_of_the_blocks() -> None:
    """The timed function, with attention between, is a layer."""
    case = layer.make_case(TINY, 2, False, "cpu")
    cos, sin = plain_llama.rotary(TINY, TINY.context)
    q, k, v = case.layer.self_attn.project(case.layer.input_layernorm(case.x), cos, sin)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x, *_ = layer.span(case.layer, y.transpose(1, 2).flatten(2), case.x, cos, sin)
    assert torch.equal(x, case.layer(case.x, cos, sin))


def test_gradients_of_heads_in_our_order() -> None:
    heads = torch.randn(2, 3, 5, 8)
    rows = ct.rotary_to_pairs(heads.permute(1, 3, 0, 2).flatten(0, 1), 3)
    expected = rows.unflatten(0, (3, 8)).permute(2, 0, 3, 1)
    assert torch.equal(layer._in_pairs(heads), expected)


@pytest.mark.parametrize("fault", [lambda t: t * 1.05, lambda t: t * torch.nan, torch.zeros_like])
def test_a_wrong_gradient_ends_the_run(monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any]) -> None:
    real = layer.our_runner

    def wrong(case: Any) -> Any:
        step = real(case).step
        return layer.Runner(lambda: [*(results := step())[:-1], fault(results[-1])])

    monkeypatch.setattr(layer, "our_runner", wrong)
    with pytest.raises(SystemExit, match=r"coda_lang, hidden 64: .*dmlp.down_proj.weight"):
        layer.measure(TINY, 2, True, "cpu", [], rounds=2)


def test_a_variant_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layer.plain_runner

    def failing(case: Any, *args: Any, **options: Any) -> Any:
        if "dtype" in options:
            return real(case, *args, **options)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(layer, "plain_runner", failing)
    row = layer.measure(TINY, 2, False, "cpu", ["pytorch"], rounds=2)
    assert row["missing"] == {"pytorch": "OutOfMemoryError: no memory"}
    assert row["ours_ms"] > 0


def test_the_layer_command_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layer, "SIZES", ((32, 48, 2), (64, 96, 4)))
    out = tmp_path / "layer.json"
    options = ["--out", str(out), "--length", "8", "--against", "pytorch", "--rounds", "2", "--device", "cpu"]
    layer.main([*options, "--seconds", "0"])
    assert "4 rows are left: call again" in capsys.readouterr().out
    assert not out.exists()
    layer.main([*options, "--hidden", "32"])
    first = json.loads(out.read_text())
    assert [(r["hidden"], r["pass"]) for r in first["rows"]] == [(32, "forward"), (32, "forward+backward")]
    assert {"date", "gpu", "driver", "versions"} <= first.keys()
    layer.main(options)
    both = json.loads(out.read_text())
    assert both["rows"][:2] == first["rows"]
    assert [r["hidden"] for r in both["rows"]] == [32, 32, 64, 64]
    assert "all rows are there" in capsys.readouterr().out
    layer.main(options)
    assert json.loads(out.read_text()) == both


def test_a_file_from_elsewhere_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "old.json"
    out.write_text(json.dumps({"gpu": "another", "driver": None, "versions": {}, "rows": []}))
    with pytest.raises(SystemExit, match="another gpu"):
        measured.Rows(out, 1.0)


MODEL = {"hidden": 32, "layers": 2, "intermediate": 48, "heads": 2, "kv-heads": 1, "length": 12, "batch": 2}


def test_the_model_command(tmp_path: Path) -> None:
    out = tmp_path / "model.json"
    shape = [text for name, value in MODEL.items() for text in (f"--{name}", str(value))]
    options = ["--out", str(out), "--vocabulary", "50", "--against", "pytorch", "liger", "--rounds", "2"]
    model.main([*options, *shape, "--device", "cpu"])
    (row,) = json.loads(out.read_text())["rows"]
    assert row["losses"].keys() >= {"coda_lang", "pytorch"}
    for ours, theirs in zip(row["losses"]["coda_lang"], row["losses"]["pytorch"], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert row["tokens_per_second"]["coda_lang"] == pytest.approx(1e3 * 24 / row["ours_ms"])
    assert ("liger" in row["missing"]) == (model.NO_LIGER is not None)


def test_losses_that_disagree_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.build
    monkeypatch.setattr(model, "build", lambda name, *a: real(name, *a, seed=1 if name == "pytorch" else 0))
    c = plain_llama.Config(vocabulary=50, hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, context=12)
    with pytest.raises(SystemExit, match="pytorch: losses"):
        model.measure(c, 2, "cpu", ["pytorch"], rounds=2, budget=0)


def test_parameters_are_bf16_and_tables_are_not() -> None:
    c = plain_llama.Config(vocabulary=50, hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, context=12)
    made = model.in_bf16(plain_llama.PlainLlama(c))
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert made.cos.dtype == torch.float32


def test_a_captured_step_keeps_its_tensors() -> None:
    """The graph reads them where they were, and says so to nobody."""
    weight = torch.ones(3)
    kept = weakref.ref(weight)
    replayed: list[float] = []

    class Graph:
        def replay(self) -> None:
            found = kept()
            assert found is not None
            replayed.append(found.sum().item())

    def step(weight: torch.Tensor = weight) -> list[torch.Tensor]:
        return [weight]

    replay = measured.Replay(Graph(), step)
    del weight, step
    gc.collect()
    replay()
    assert replayed == [3.0]
    del replay
    gc.collect()
    assert kept() is None
