"""Training steps of a Llama of about a billion parameters: tokens per second of coda_lang, torch.compile and Liger.

    python examples/benchmark_model.py --out benchmarks/results/NAME-model.json

A step is forward, backward and AdamW on 16384 tokens: parameters, gradients and the optimizer's state in bf16, no
checkpointing, random tokens. All variants start from the same weights, and must agree in the first loss within 0.02 and
in the third within 0.05. Their steps are interleaved; `peak_bytes` is the peak of a step with the model and its
optimizer. A row is written as soon as it is measured; call again with the same file until all are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from measured import COMPILED, EAGER, LIGER, OURS, Rows, clean, summary, times
from plain_llama import PLAIN, Config, Parts, PlainLlama
from torch import Tensor, nn
from train_llama import FusedLlama

import coda_lang.torch as coda
from coda_lang.measure.series import medians

try:
    from liger_parts import LIGER as LIGER_PARTS

    NO_LIGER = None
except ImportError as error:
    NO_LIGER = str(error)

Model = TypeVar("Model", bound=nn.Module)

VOCABULARIES = (32768, 128256)
ROW_SECONDS = 150.0
FIRST_GAP, LAST_GAP = 0.02, 0.05
CHECKED = 3  # steps whose losses are compared


class Training:
    """A model with its optimizer and one batch of tokens."""

    def __init__(self, model: nn.Module, tokens: Tensor, target: Tensor, compiled: bool) -> None:
        self._tokens, self._target = tokens, target
        self._run = torch.compile(model, dynamic=False) if compiled else model
        fused = True if tokens.is_cuda else None
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def gradients(self) -> Tensor:
        loss: Tensor = self._run(self._tokens, self._target)
        loss.backward()
        return loss.detach()

    def step(self) -> Tensor:
        loss = self.gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def in_bf16(model: Model) -> Model:
    """Parameters alone: the tables of angles stay f32."""
    for p in model.parameters():
        p.data = p.data.bfloat16()
    return model


def build(name: str, c: Config, batch: int, device: str, seed: int = 0) -> Training:
    """A variant, from the weights and the tokens of the seed."""
    parts: Parts = LIGER_PARTS if name == LIGER else PLAIN
    torch.manual_seed(seed)
    with torch.device(device):
        plain = in_bf16(PlainLlama(c, parts=parts))
        model = in_bf16(FusedLlama(plain)) if name == OURS else plain
        generator = torch.Generator(device).manual_seed(seed)
        windows = torch.randint(c.vocabulary, (batch, c.context + 1), generator=generator)
    return Training(model, windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), name == COMPILED)


def measure(c: Config, batch: int, device: str, against: Iterable[str], rounds: int, budget: int) -> dict[str, Any]:
    """One row; our products are tuned over `budget` schedules first. Raises SystemExit if the losses disagree."""
    cuda = torch.device(device).type == "cuda"
    calls: dict[str, Callable[[], object]] = {}
    row: dict[str, Any] = {"losses": {}, "peak_bytes": {}, "prepare_seconds": {}, "missing": {}}
    for name in (OURS, *against):
        if name == LIGER and NO_LIGER is not None:
            row["missing"][name] = NO_LIGER
            continue
        start = time.perf_counter()
        before = torch.cuda.memory_allocated() if cuda else 0
        try:
            training = build(name, c, batch, device)
            if name == OURS and cuda:
                if budget:
                    coda.tune(training.gradients, budget=budget)
                coda.precompile(training.gradients)
                training.optimizer.zero_grad(set_to_none=True)
            losses = [training.step().item() for _ in range(CHECKED)]
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            training.step()
            row["peak_bytes"][name] = torch.cuda.max_memory_allocated() - before if cuda else None
        except Exception as problem:
            if name == OURS:
                raise
            row["missing"][name] = f"{type(problem).__name__}: {problem}".splitlines()[0]
            continue
        row["losses"][name] = losses
        row["prepare_seconds"][name] = time.perf_counter() - start
        calls[name] = training.step
        ours = row["losses"][OURS]
        if not (abs(losses[0] - ours[0]) < FIRST_GAP and abs(losses[-1] - ours[-1]) < LAST_GAP):
            sys.exit(f"{name}: losses {losses}, and ours {ours}")
    row |= times(calls, device, rounds)
    tokens = batch * c.context
    rate = {name: 1e3 * tokens / ms for name, ms in medians(row["samples"]).items()}
    return row | {"tokens_per_second": rate}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no row that is likely to end later")
    shape = {"hidden": 2048, "layers": 16, "intermediate": 8192, "heads": 32, "kv_heads": 8, "length": 2048, "batch": 8}
    for name, value in shape.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--against", nargs="+", choices=(COMPILED, LIGER, EAGER), default=[COMPILED, LIGER])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tune", type=int, default=0, help="schedules to try for each of our products, beforehand")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(arguments)
    rows = Rows(args.out, args.seconds)
    for vocabulary in args.vocabulary:
        key = {"work": "training step", "vocabulary": vocabulary, "tuned": args.tune}
        key |= {name: getattr(args, name) for name in shape}
        if not rows.due(key, ROW_SECONDS):
            continue
        c = Config(
            vocabulary=vocabulary, hidden=args.hidden, intermediate=args.intermediate, layers=args.layers,
            heads=args.heads, kv_heads=args.kv_heads, context=args.length,
        )  # fmt: skip
        row = measure(c, args.batch, args.device, args.against, args.rounds, args.tune)
        rows.add(key | {"dtype": "bf16", "device": args.device} | row)
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row["tokens_per_second"].items())
        print(f"vocabulary {vocabulary}: tokens/s {rates}; {summary(row)}", flush=True)
        clean(args.device)
    rows.close()


if __name__ == "__main__":
    main()
