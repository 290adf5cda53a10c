"""A Llama layer without its attention, forward and backward: coda_lang beside torch.compile and Liger.

    python examples/benchmark_layer.py --out benchmarks/results/NAME-layer.json

The work is that of `coda_lang.torch.llama_span`: from the attention's output y and the residual stream x to the next
stream and to the next attention's queries, keys and values, with one layer's weights in bf16:

    x1 = x + y @ out.T      x2 = x1 + swiglu(rmsnorm(x1) @ gate_up.T) @ down.T      q, k, v = rope(rmsnorm(x2) @ qkv.T)

Each variant is captured in a CUDA graph and the replays are interleaved (docs/benchmarks.md); one that cannot be
captured is called instead, queued like the replays. "products" are the layer's bare matrix products through cuBLAS.
Before it is timed, every output and gradient of a variant is compared with PyTorch in f32; `errors` has the relative
errors, and one above 3 % ends the run. The gradients of q, k and v come as attention leaves them, [B, T, heads, D] in
memory; joining them into one is part of our time. `peak_bytes` is what a step allocates, its results included. A row is
written as soon as it is measured; call again with the same file until all are there. Steps are timed as they last, and,
under `rested`, about 10 ms of them after 30 ms of rest.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measured import COMPILED, EAGER, LIGER, OURS, Rows, captured, clean, peak_bytes, relative_error, summary, times
from plain_llama import PLAIN, Config, Layer, Parts, rotary
from torch import Tensor

import coda_lang.torch as coda

try:
    from liger_parts import LIGER as LIGER_PARTS

    NO_LIGER = None
except ImportError as error:
    NO_LIGER = str(error)

# hidden, intermediate, heads
SIZES = ((2048, 5632, 16), (4096, 11008, 32), (8192, 22016, 64))
KV_HEADS = 8
PASSES = ("forward", "forward+backward")
ALLOWED = 0.03
ROW_SECONDS = 60.0


@dataclass
class Runner:
    """A step that can be repeated, and what gives it its inputs back: Liger's RoPE overwrites its output's gradient."""

    step: Callable[[], list[Tensor]]
    restore: Callable[[], None] = lambda: None


@dataclass
class Case:
    """One layer's weights and inputs; names of results are those of the standard layer's state, a d for gradients."""

    config: Config
    layer: Layer
    y: Tensor
    x: Tensor
    upstream: tuple[Tensor, ...]  # gradients of the stream and of q, k and v
    backward: bool
    device: str

    @property
    def names(self) -> list[str]:
        gradients = ["y", "x", *(n for n, _ in self.layer.named_parameters())] if self.backward else []
        return ["x", "q", "k", "v", *("d" + n for n in gradients)]


def make_case(c: Config, batch: int, backward: bool, device: str, seed: int = 0) -> Case:
    """Normal inputs; weights of scale 0.02, norm weights about 1."""
    torch.manual_seed(seed)
    with torch.device(device):
        layer = Layer(c)
        for p in layer.parameters():
            torch.nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.1 if p.dim() == 1 else 0.02)
        layer = layer.bfloat16().requires_grad_(backward)
        shape = (batch, c.context)
        y = torch.randn(*shape, c.heads * c.head_dim).bfloat16().requires_grad_(backward)
        x = torch.randn(*shape, c.hidden).bfloat16().requires_grad_(backward)
        heads = [torch.randn(*shape, n, c.head_dim).transpose(1, 2) for n in (c.heads, c.kv_heads, c.kv_heads)]
        upstream = tuple(t.bfloat16() for t in (torch.randn(*shape, c.hidden), *heads))
    return Case(c, layer, y, x, upstream, backward, device)


def span(layer: Layer, y: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    x = x + layer.self_attn.o_proj(y)
    x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x, *layer.self_attn.project(layer.input_layernorm(x), cos, sin)


def plain_runner(
    case: Case, parts: Parts = PLAIN, compiled: bool = False, dtype: torch.dtype = torch.bfloat16
) -> Runner:
    """The layer as PyTorch computes it, with the functions of `parts` between the products."""
    with torch.device(case.device):
        layer = Layer(case.config, parts).to(dtype).requires_grad_(case.backward)
        cos, sin = rotary(case.config, case.config.context)
    layer.load_state_dict(case.layer.state_dict())
    y, x = (t.detach().to(dtype).requires_grad_(case.backward) for t in (case.y, case.x))
    cos, sin = cos.to(case.device), sin.to(case.device)
    f = torch.compile(span, dynamic=False) if compiled else span
    leaves = [y, x, *layer.parameters()]
    upstream = [t.to(dtype, copy=True) for t in case.upstream]

    def restore() -> None:
        for mine, given in zip(upstream, case.upstream, strict=True):
            mine.copy_(given)

    def step() -> list[Tensor]:
        outputs = f(layer, y, x, cos, sin)
        return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)] if case.backward else list(outputs)

    return Runner(step, restore)


def our_runner(case: Case) -> Runner:
    c = case.config
    with torch.device(case.device):
        block = coda.LlamaBlock(c.hidden, c.intermediate, c.heads, c.kv_heads, eps=c.eps, dtype=torch.bfloat16)
        cos, sin = coda.rope_tables(c.context, c.head_dim, c.theta)
        position = torch.arange(c.context).repeat(len(case.x), 1)
    block.load_state_dict(coda.from_llama(case.layer.state_dict(), c.heads, c.kv_heads))
    block.requires_grad_(case.backward)
    leaves = [case.y, case.x, *block.parameters()]
    dx, *dheads = case.upstream
    dqk = [_in_pairs(t) for t in dheads[:2]]

    def step() -> list[Tensor]:
        outputs = coda.llama_span(
            case.y, block.out, case.x, block.mlp_norm, block.gate_up, block.down, block.attention_norm, block.qkv,
            cos, sin, position, block.rotated, block.eps, head_dim=block.head_dim,
        )  # fmt: skip
        if not case.backward:
            return list(outputs)
        dqkv = torch.cat([t.transpose(1, 2).flatten(2) for t in (*dqk, dheads[2])], -1)
        return [*outputs, *torch.autograd.grad(outputs, leaves, [dx, dqkv])]

    return Runner(step)


def _in_pairs(heads: Tensor) -> Tensor:
    """The columns j and j + D/2 of each head as 2j and 2j + 1; [B, heads, T, D], still [B, T, heads, D] in memory."""
    return heads.transpose(1, 2).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2).contiguous().transpose(1, 2)


def standard(case: Case, ours: Sequence[Tensor]) -> list[Tensor]:
    """Our results in the order of a standard layer's."""
    c = case.config
    x, qkv, *gradients = ours
    heads = coda.unpack_qkv(qkv.movedim(-1, 0), c.heads, c.kv_heads)
    split = [t.unflatten(0, (-1, c.head_dim)).permute(2, 0, 3, 1) for t in heads]
    if not case.backward:
        return [x, *split]
    dy, dx, attention_norm, qkv, out, mlp_norm, gate_up, down = gradients
    block = {"attention_norm": attention_norm, "qkv": qkv, "out": out, "mlp_norm": mlp_norm, "gate_up": gate_up}
    state = coda.to_llama({**block, "down": down}, c.heads, c.kv_heads)
    return [x, *split, dy, dx, *(state[n] for n, _ in case.layer.named_parameters())]


def products(case: Case) -> Runner:
    """The layer's matrix products alone."""
    c, rows = case.config, case.x.shape[0] * case.x.shape[1]
    width = c.heads * c.head_dim
    shapes = [(c.hidden, width), (2 * c.intermediate, c.hidden), (c.hidden, c.intermediate)]
    pairs: list[tuple[Tensor, Tensor]] = []
    for n, k in [*shapes, (width + 2 * c.kv_heads * c.head_dim, c.hidden)]:
        x, w, dz = (torch.randn(s, device=case.device).bfloat16() for s in ((rows, k), (n, k), (rows, n)))
        pairs += [(x, w.T), (dz, w), (dz.T, x)] if case.backward else [(x, w.T)]

    return Runner(lambda: [torch.mm(a, b) for a, b in pairs])


def measure(c: Config, batch: int, backward: bool, device: str, against: Iterable[str], rounds: int) -> dict[str, Any]:
    """One row. Raises SystemExit if a variant's results are wrong."""
    case = make_case(c, batch, backward, device)
    exact = [t.detach() for t in plain_runner(case, dtype=torch.float32).step()]
    makers: dict[str, Callable[[], Runner]] = {
        OURS: lambda: our_runner(case),
        COMPILED: lambda: plain_runner(case, compiled=True),
        LIGER: lambda: plain_runner(case, LIGER_PARTS),
        EAGER: lambda: plain_runner(case),
    }
    calls: dict[str, Callable[[], object]] = {}
    row: dict[str, Any] = {n: {} for n in ("errors", "captured", "peak_bytes", "prepare_seconds", "missing")}
    for name in (OURS, *against):
        if name == LIGER and NO_LIGER is not None:
            row["missing"][name] = NO_LIGER
            continue
        start = time.perf_counter()
        try:
            with torch.set_grad_enabled(backward):
                runner = makers[name]()
                if name == OURS and device != "cpu":
                    coda.precompile(runner.step)
                row["peak_bytes"][name] = peak_bytes(runner.step, device)
                calls[name], results, row["captured"][name] = captured(runner.step, runner.restore, device)
        except Exception as problem:
            if name == OURS:
                raise
            row["missing"][name] = f"{type(problem).__name__}: {problem}".splitlines()[0]
            continue
        row["prepare_seconds"][name] = time.perf_counter() - start
        results = standard(case, results) if name == OURS else results
        errors = {n: relative_error(x, t) for n, x, t in zip(case.names, results, exact, strict=True)}
        row["errors"][name] = errors
        wrong = {n: e for n, e in errors.items() if not e < ALLOWED}
        if wrong:
            sys.exit(f"{name}, hidden {c.hidden}: relative errors {wrong}")
    calls["products"], *_ = captured(products(case).step, lambda: None, device)
    return row | times(calls, device, rounds, rested=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no row that is likely to end later")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--hidden", type=int, nargs="+", help="of the sizes, these")
    parser.add_argument("--against", nargs="+", choices=(COMPILED, LIGER, EAGER), default=[COMPILED, LIGER])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(arguments)
    rows = Rows(args.out, args.seconds)
    for hidden, intermediate, heads in SIZES:
        if args.hidden and hidden not in args.hidden:
            continue
        c = Config(
            hidden=hidden, intermediate=intermediate, heads=heads, kv_heads=min(heads, KV_HEADS), context=args.length
        )  # fmt: skip
        for direction in PASSES:
            shape = {"hidden": hidden, "intermediate": intermediate, "heads": heads, "kv_heads": c.kv_heads}
            key = {"work": "layer", "pass": direction, "batch": args.batch, "length": args.length, **shape}
            if not rows.due(key, ROW_SECONDS):
                continue
            row = measure(c, args.batch, direction != PASSES[0], args.device, args.against, args.rounds)
            rows.add(key | {"head_dim": c.head_dim, "dtype": "bf16", "device": args.device} | row)
            print(f"hidden {hidden:5} {direction:17} {summary(row)}", flush=True)
            clean(args.device)
    rows.close()


if __name__ == "__main__":
    main()
