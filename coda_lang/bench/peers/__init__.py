"""Who else does the work of a kernel: one module for each, with the same function `find`.

A peer does what its users would run for the same outputs; where it does more or less, the note says so. One that is not
installed, or has no counterpart, is absent with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from coda_lang.binding import Binding

Arguments = Mapping[str, Any]
Outputs = Mapping[str, Any]
PEERS = ("cublas", "torch.compile", "quack", "liger")
_MODULES = {"cublas": "plain", "torch.compile": "compiled", "quack": "quack", "liger": "liger"}


@dataclass(frozen=True)
class Task:
    """`run` does the work once: it is timed. `outputs` takes what it returned, and gives those outputs that the kernel
    has too, under its names: they are compared with the kernel's.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], Outputs] = lambda result: {}


@dataclass(frozen=True)
class Peer:
    """`prepare` takes a call's arguments; what it does is not timed. `note` says what else the peer does, or not."""

    prepare: Callable[[Arguments], Task]
    note: str | None = None


class AbsentError(Exception):
    """Why a peer does not take part."""


@dataclass(frozen=True)
class Options:
    """`tuned`: peers that can tune themselves do. `backend` is torch.compile's."""

    tuned: bool = True
    backend: str = "inductor"


def find(name: str, binding: Binding, library: str, options: Options | None = None) -> Peer:
    """The peer of that name for a call, whose kernel `specialise` made and whose arrays `library` holds.

    Raises:
        AbsentError: it is not installed, or nothing of it does this work.
    """
    module = import_module(f"{__name__}.{_MODULES[name]}")
    peer = module.find(binding, library, options or Options())
    assert isinstance(peer, Peer)
    return peer
