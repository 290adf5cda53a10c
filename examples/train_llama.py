"""Train a small Llama (10 million parameters) twice from one seed, with plain PyTorch and with coda_lang's layers.

    python examples/train_llama.py          # 300 steps on a GPU, each model in turn
    python examples/train_llama.py --device cpu --steps 30 --hidden 64 --intermediate 160 --layers 2 --heads 4 \\
        --context 64 --batch 4 --lr 3e-3

Parameters are f32, products bf16 (autocast), the residual stream bf16, AdamW. It writes a JSON file with both loss
curves, tokens per second and peak memory, and an SVG plot of the curves beside it. The text, king_james.txt, is Genesis
and Exodus in the King James Version (1611, public domain), a verse a line, from Debian's package `bible-kjv-text`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from plain_llama import Config, PlainLlama
from torch import Tensor, nn

import coda_lang.torch as coda

HERE = Path(__file__).resolve().parent


class FusedLlama(nn.Module):
    """The same model from coda_lang's layers, with a copy of a plain model's weights."""

    def __init__(self, plain: PlainLlama) -> None:
        super().__init__()
        c = self.config = plain.config
        self.embed_tokens = nn.Embedding.from_pretrained(plain.embed_tokens.weight.detach().clone(), freeze=False)
        self.layers = nn.ModuleList()
        for layer in plain.layers:
            block = coda.LlamaBlock(c.hidden, c.intermediate, c.heads, c.kv_heads, eps=c.eps)
            block.load_state_dict(coda.from_llama(layer.state_dict(), c.heads, c.kv_heads))
            self.layers.append(block)
        self.norm = nn.Parameter(plain.norm.weight.detach().clone())
        self.head = coda.LinearCrossEntropy(c.hidden, c.vocabulary)
        self.head.load_state_dict({"weight": plain.lm_head.weight})
        cos, sin = coda.rope_tables(c.context, c.head_dim, c.theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.embed_tokens(tokens).to(torch.bfloat16)
        x = coda.run_blocks(self.layers, x, self.cos, self.sin)
        h, rstd = coda.input_rms(x, self.norm, self.config.eps)
        loss: Tensor = self.head(h, target, rstd)
        return loss


def batches(text: bytes, context: int, batch: int, steps: int, seed: int) -> Tensor:
    """Random windows of the text: i64[steps, batch, context + 1]."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - context - 1, (steps, batch, 1), generator=generator)
    return data[starts + torch.arange(context + 1)]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """A tenth of the steps to warm up, then down in a line to a tenth of the peak."""
    warm = max(1, steps // 10)
    return peak * min((step + 1) / warm, 1.0 - 0.9 * max(0, step - warm) / max(1, steps - warm))


def train(model: nn.Module, data: Tensor, device: str, peak: float, autocast: bool = True) -> dict[str, Any]:
    """One pass over `data`; the loss before each step, tokens per second after the first steps, and peak memory."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    steps, skipped, losses = len(data), min(10, len(data) - 1), []
    start = time.perf_counter()
    for i, windows in enumerate(data):
        if i == skipped:  # the first steps compile and allocate
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, steps, peak)
        windows = windows.to(device)
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=autocast):
            loss = model(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    curve = torch.stack(losses).tolist()  # waits for the device
    rate = (steps - skipped) * data.shape[1] * (data.shape[2] - 1) / (time.perf_counter() - start)
    peak_bytes = torch.cuda.max_memory_allocated() if cuda else None
    return {"losses": curve, "tokens_per_second": rate, "peak_bytes": peak_bytes}


def plot(curves: dict[str, list[float]]) -> str:
    """The loss curves as an SVG picture."""
    width, height, left, bottom = 720, 420, 60, 40
    top = max(max(c) for c in curves.values())
    low = min(min(c) for c in curves.values())
    count = max(len(c) for c in curves.values())

    def place(step: float, loss: float) -> str:
        x = left + (width - left - 20) * step / max(1, count - 1)
        y = 20 + (height - bottom - 20) * (top - loss) / max(1e-9, top - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        '     font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i in range(6):
        loss = low + (top - low) * i / 5
        x, y = place(0, loss).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - 20}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        step = round((count - 1) * i / 5)
        x = place(step, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 4}" text-anchor="middle">step</text>')
    for i, ((name, curve), colour) in enumerate(zip(curves.items(), ("#d62728", "#1f77b4", "#2ca02c"), strict=False)):
        points = " ".join(place(step, loss) for step, loss in enumerate(curve))
        # the first curve is drawn broad and pale, so that one on top of it leaves it visible
        style = 'stroke-width="4" stroke-opacity="0.35"' if i == 0 else 'stroke-width="1.2"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" {style}/>')
        parts.append(f'<text x="{width - 30}" y="{40 + 18 * i}" text-anchor="end" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Config()
    for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "context"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(default, name))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--text", type=Path, default=HERE / "king_james.txt")
    parser.add_argument("--out", type=Path, default=Path("train_llama.json"))
    args = parser.parse_args()

    config = Config(
        hidden=args.hidden, intermediate=args.intermediate, layers=args.layers, heads=args.heads,
        kv_heads=args.kv_heads, context=args.context,
    )  # fmt: skip
    data = batches(args.text.read_bytes(), args.context, args.batch, args.steps, args.seed)
    torch.manual_seed(args.seed)
    plain = PlainLlama(config)
    models: dict[str, nn.Module] = {"plain PyTorch": plain, "coda_lang": FusedLlama(plain)}
    parameters = sum(p.numel() for p in plain.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {args.batch * args.context} tokens a step, {args.device}")
    runs: dict[str, Any] = {}
    for name, model in models.items():
        runs[name] = train(torch.compile(model) if args.compile else model, data, args.device, args.lr)
        model.cpu()
        last = runs[name]["losses"][-1]
        print(f"{name}: loss {last:.4f} after {args.steps} steps, {runs[name]['tokens_per_second']:.0f} tokens/s")
    first, second = (torch.tensor(run["losses"]) for run in runs.values())
    gap = (first - second).abs()
    print(f"difference of the curves: mean {gap.mean():.4f}, largest {gap.max():.4f}")
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    gaps = {"mean_gap": gap.mean().item(), "max_gap": gap.max().item()}
    report = {"settings": settings, "parameters": parameters, **gaps, "runs": runs}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    args.out.with_suffix(".svg").write_text(plot({name: run["losses"] for name, run in runs.items()}))


if __name__ == "__main__":
    main()
