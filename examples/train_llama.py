"""Train a small Llama (10 million parameters) from one seed with plain PyTorch and with coda_lang's layers.

    python examples/train_llama.py          # 300 steps of each run, on a GPU
    python examples/train_llama.py --device cpu --steps 30 --hidden 64 --intermediate 160 --layers 2 --heads 4 \\
        --context 64 --batch 4 --lr 3e-3

Parameters are f32, products bf16 (autocast), the residual stream bf16, AdamW. The runs, in turn: plain PyTorch in f32
throughout (what the others' rounding is judged by), in bf16, in bf16 through torch.compile (on a GPU), coda_lang, and
coda_lang through torch.compile (on a GPU), which takes Python out of a step this small. After each, the JSON file has
its loss curve, the time of a step and the peak memory, beside the GPU, the driver and the versions; a picture of the
curves is drawn beside it. The text, king_james.txt, is Genesis and Exodus in the King James
Version (1611, public domain), a verse a line, from Debian's package `bible-kjv-text`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from plain_llama import Config, PlainLlama
from torch import Tensor, nn

import coda_lang.torch as coda
from coda_lang.environment import describe

HERE = Path(__file__).resolve().parent
COMPILED, BOTH = "torch.compile", "coda_lang+torch.compile"
RUNS = ("f32", "pytorch", COMPILED, "coda_lang", BOTH)
WARM = 10  # steps that are not timed: the first ones compile and allocate


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


class Clock:
    """The time between two marks, on a GPU without waiting for it."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        pairs = zip(self._marks[:-1], self._marks[1:], strict=True)
        if not self._cuda:
            return [1e3 * (b - a) for a, b in pairs]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairs]


def train(model: nn.Module, data: Tensor, device: str, peak: float, autocast: bool = True) -> dict[str, Any]:
    """One pass over `data`: the loss before each step, the steps' times and their median, and peak memory."""
    kind, cuda = torch.device(device).type, torch.device(device).type == "cuda"
    resident = torch.cuda.memory_allocated() if cuda else 0
    model, data = model.to(device), data.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)

    def gradients(of: nn.Module, windows: Tensor) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=autocast):
            loss: Tensor = of(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        loss.backward()
        return loss.detach()

    start = time.perf_counter()
    eager = getattr(model, "_orig_mod", model)
    if cuda and isinstance(eager, FusedLlama):
        coda.precompile(lambda: gradients(eager, data[0]))
        optimizer.zero_grad(set_to_none=True)
    prepared = time.perf_counter() - start
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    clock, losses = Clock(cuda), []
    for i, windows in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, len(data), peak)
        clock.mark()
        losses.append(gradients(model, windows))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    clock.mark()
    times = clock.milliseconds()
    step = statistics.median(times[min(WARM, len(times) - 1) :])
    return {
        "losses": torch.stack(losses).tolist(),
        "step_ms": step,
        "tokens_per_second": 1e3 * data.shape[1] * (data.shape[2] - 1) / step,
        "peak_bytes": torch.cuda.max_memory_allocated() - resident if cuda else None,
        "precompile_seconds": prepared,
        "seconds": time.perf_counter() - start,
        "step_samples_ms": times,
    }


def run(name: str, config: Config, data: Tensor, device: str, peak: float, seed: int) -> dict[str, Any]:
    """One of `RUNS`, from fresh weights of the seed."""
    torch.manual_seed(seed)
    plain = PlainLlama(config, torch.float32 if name == "f32" else torch.bfloat16)
    makers: dict[str, Callable[[], nn.Module]] = {
        "f32": lambda: plain,
        "pytorch": lambda: plain,
        COMPILED: lambda: torch.compile(plain, dynamic=False),
        "coda_lang": lambda: FusedLlama(plain),
        BOTH: lambda: torch.compile(FusedLlama(plain), dynamic=False, fullgraph=True),
    }
    made = train(makers[name](), data, device, peak, autocast=name != "f32")
    torch._dynamo.reset()
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return made


def gaps(runs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How far each curve is from that in f32, and ours from PyTorch's in bf16."""
    pairs = [(name, "f32") for name in runs if name != "f32"] + [("coda_lang", "pytorch")]
    found = {}
    for a, b in pairs:
        if a in runs and b in runs:
            gap = (torch.tensor(runs[a]["losses"]) - torch.tensor(runs[b]["losses"])).abs()
            found[f"{a} from {b}"] = {"mean": gap.mean().item(), "largest": gap.max().item()}
    return found


def plot(curves: dict[str, list[float]], path: Path) -> None:
    """The loss curves as a picture; the first is drawn broad and pale, so that those on top leave it visible."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for i, (name, curve) in enumerate(curves.items()):
        style = {"linewidth": 4, "alpha": 0.35} if i == 0 else {"linewidth": 1}
        axes.plot(curve, label=name, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Config()
    for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "context"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(default, name))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", nargs="+", choices=RUNS, help="by default all; on a CPU those without torch.compile")
    parser.add_argument("--text", type=Path, default=HERE / "king_james.txt")
    parser.add_argument("--out", type=Path, default=Path("train_llama.json"))
    args = parser.parse_args(arguments)

    config = Config(
        hidden=args.hidden, intermediate=args.intermediate, layers=args.layers, heads=args.heads,
        kv_heads=args.kv_heads, context=args.context,
    )  # fmt: skip
    data = batches(args.text.read_bytes(), args.context, args.batch, args.steps, args.seed)
    names = args.runs or [n for n in RUNS if n not in (COMPILED, BOTH) or args.device != "cpu"]
    parameters = sum(p.numel() for p in PlainLlama(config).parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {args.batch * args.context} tokens a step, {args.device}", flush=True)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "text", "runs")} | {"text": args.text.name}
    report: dict[str, Any] = {**describe(), "settings": settings, "parameters": parameters, "gaps": {}, "runs": {}}
    for name in names:
        made = report["runs"][name] = run(name, config, data, args.device, args.lr, args.seed)
        report["gaps"] = gaps(report["runs"])
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        memory = "" if made["peak_bytes"] is None else f", {made['peak_bytes'] / 2**30:.2f} GiB"
        print(
            f"{name:23} loss {made['losses'][-1]:.4f} after {args.steps} steps, {made['step_ms']:.2f} ms a step, "
            f"{made['tokens_per_second']:.0f} tokens/s{memory} ({made['seconds']:.0f} s in all)", flush=True,
        )  # fmt: skip
    for pair, gap in report["gaps"].items():
        print(f"{pair}: mean {gap['mean']:.4f}, largest {gap['largest']:.4f}")
    try:
        plot({name: made["losses"] for name, made in report["runs"].items()}, args.out.with_suffix(".svg"))
    except ImportError as error:
        print(f"no picture: {error}")


if __name__ == "__main__":
    main()
