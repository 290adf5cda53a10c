"""The training example at a small size: the curves of the two models overlap within bf16 noise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from test_torch_llama import example

train_llama = example("train_llama")
plain_llama = example("plain_llama")


def test_thirty_steps() -> None:
    config = plain_llama.Config(
        hidden=64, intermediate=160, layers=2, heads=4, kv_heads=2, context=64, vocabulary=128
    )  # fmt: skip
    text = (train_llama.HERE / "king_james.txt").read_bytes()
    data = train_llama.batches(text, config.context, 4, 30, seed=0)
    curves = {}
    for name in ("f32", "bf16", "ours"):
        torch.manual_seed(0)
        plain = plain_llama.PlainLlama(config, torch.float32 if name == "f32" else torch.bfloat16)
        model = train_llama.FusedLlama(plain) if name == "ours" else plain
        curves[name] = torch.tensor(train_llama.train(model, data, "cpu", 3e-3, autocast=name != "f32")["losses"])
    noise = (curves["bf16"] - curves["f32"]).abs()
    ours = (curves["ours"] - curves["f32"]).abs()
    assert curves["ours"][0] - curves["ours"][-1] > 1.5
    assert ours.mean() <= 1.5 * noise.mean() + 1e-4
    assert ours.max() <= 2 * noise.max()
    assert (curves["ours"] - curves["bf16"]).abs().max() < 5e-3


SMALL = ["--hidden", "32", "--intermediate", "48", "--layers", "1", "--heads", "2", "--kv-heads", "1", "--batch", "2"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One call makes all the runs, the record and the picture."""
    out = tmp_path / "small.json"
    train_llama.main([*SMALL, "--context", "16", "--steps", "12", "--device", "cpu", "--out", str(out)])
    report = json.loads(out.read_text())
    assert {"date", "gpu", "driver", "versions", "settings", "parameters", "gaps"} <= report.keys()
    assert str(tmp_path) not in out.read_text()
    assert str(train_llama.HERE) not in out.read_text()
    assert list(report["runs"]) == ["f32", "pytorch", "coda_lang"]
    for made in report["runs"].values():
        assert len(made["losses"]) == len(made["step_samples_ms"]) == 12
        assert made["losses"][0] == pytest.approx(math.log(256), rel=0.02)
        assert made["step_ms"] == pytest.approx(sum(made["step_samples_ms"][10:]) / 2)
        assert made["peak_bytes"] is None
    gap = report["gaps"]["coda_lang from pytorch"]
    curves = [report["runs"][n]["losses"] for n in ("coda_lang", "pytorch")]
    apart = [abs(x - y) for x, y in zip(*curves, strict=True)]
    assert gap["largest"] == pytest.approx(max(apart), rel=1e-3)
    assert gap["mean"] == pytest.approx(sum(apart) / 12, rel=1e-3)
    assert "after 12 steps" in capsys.readouterr().out


def test_chosen_runs(tmp_path: Path) -> None:
    out = tmp_path / "small.json"
    chosen = ["coda_lang", "coda_lang+torch.compile"]
    options = ["--context", "8", "--steps", "2", "--device", "cpu", "--runs", *chosen, "--out", str(out)]
    train_llama.main([*SMALL, *options])
    runs = json.loads(out.read_text())["runs"]
    assert list(runs) == chosen
    eager, compiled = (runs[n]["losses"] for n in chosen)
    assert compiled == pytest.approx(eager, rel=2**-8)


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    train_llama.plot({"a": [3.0, 2.0, 1.0], "b": [3.0, 2.5, 1.5]}, path)
    assert path.read_text().rstrip().endswith("</svg>")


def test_learning_rate() -> None:
    rates = [train_llama.learning_rate(i, 300, 1e-3) for i in range(300)]
    assert rates[0] == pytest.approx(1e-3 / 30)
    assert max(rates) == rates[29] == rates[30] == 1e-3
    assert rates[-1] == pytest.approx(1e-4, rel=0.05)
