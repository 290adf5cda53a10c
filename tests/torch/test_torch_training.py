"""The training example at a small size: the curves of the two models overlap within bf16 noise."""

from __future__ import annotations

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


def test_plot() -> None:
    picture = train_llama.plot({"a": [3.0, 2.0, 1.0], "b": [3.0, 2.5, 1.5]})
    assert picture.count("<polyline") == 2
    assert picture.rstrip().endswith("</svg>")
