"""The block of one kind of call: the inputs that are passed, the outputs that are asked for, and the steps for them."""

from __future__ import annotations

from dataclasses import replace

from coda_lang.ir.program import Block


def specialise(block: Block, passed: frozenset[str], outputs: frozenset[str]) -> Block:
    """Optional inputs that are not `passed` are passed to no step; what no asked output and no `inout` needs is left
    out."""
    absent = {p.name for p in block.params if p.name not in passed and p.default is not None and not p.host}
    stores = tuple((o, t) for o, t in block.stores if o in outputs)
    needed = {t for _, t in stores}
    steps = []
    for step in reversed(block.steps):
        results = tuple((o, t) for o, t in step.results if t in needed)
        if not results and not any(p.inout for p in step.callee.params):
            continue
        tensors = tuple((p, t) for p, t in step.tensors if t not in absent)
        needed |= {t for _, t in tensors}
        steps.append(replace(step, tensors=tensors, results=results))
    return replace(
        block,
        params=tuple(p for p in block.params if p.name not in absent),
        outputs=tuple(o for o in block.outputs if o.name in outputs),
        tensors=tuple(t for t in block.tensors if t.name in needed),
        steps=tuple(reversed(steps)),
        stores=stores,
    )
