"""Where a block's temporaries lie: one allocation, in which arrays that are never alive together share bytes."""

from __future__ import annotations

from dataclasses import dataclass

from coda_lang.arrays import ITEM_BYTES
from coda_lang.blocks.expand import Expansion

ALIGNMENT = 256  # bytes: what TMA and vector loads ask for, and more


@dataclass(frozen=True)
class Arena:
    """What the temporaries of a number of launches take.

    ``offsets`` are by buffer number; ``bytes`` is the size of the allocation, ``live`` the most that is in use at one
    time, and ``total`` what the temporaries would take if none shared.
    """

    launches: int
    offsets: dict[int, int]
    bytes: int
    live: int
    total: int


def plan(expansion: Expansion) -> Arena:
    """Places the largest first, each at the lowest offset that is free for as long as it lives."""
    lives = _lifetimes(expansion)
    sizes = {i: _size(expansion, i) for i in lives}
    placed: list[int] = []
    offsets: dict[int, int] = {}
    for i in sorted(lives, key=lambda i: (-sizes[i], i)):
        first, last = lives[i]
        beside = sorted(
            (offsets[j], offsets[j] + sizes[j]) for j in placed if lives[j][0] <= last and first <= lives[j][1]
        )
        at = 0
        for start, end in beside:
            if at + sizes[i] <= start:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
    size = max((offsets[i] + sizes[i] for i in placed), default=0)
    launches = range(len(expansion.launches))
    live = max((sum(sizes[i] for i, (a, b) in lives.items() if a <= t <= b) for t in launches), default=0)
    return Arena(len(expansion.launches), offsets, size, live, sum(sizes.values()))


def _lifetimes(expansion: Expansion) -> dict[int, tuple[int, int]]:
    """The first and the last launch that touches each temporary."""
    lives: dict[int, tuple[int, int]] = {}
    for t, launch in enumerate(expansion.launches):
        for piece in (*launch.tensors.values(), *launch.outputs.values()):
            if expansion.buffers[piece.buffer].role == "temporary":
                lives[piece.buffer] = (lives.get(piece.buffer, (t, t))[0], t)
    return lives


def _size(expansion: Expansion, i: int) -> int:
    buffer = expansion.buffers[i]
    return -(-buffer.elements * ITEM_BYTES[buffer.dtype] // ALIGNMENT) * ALIGNMENT
