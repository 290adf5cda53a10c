"""Tuned schedules on disk, beside the compiled kernels.

An entry is JSON with a checksum. Processes that tune at once leave the entry of the last, whole; the calls of a damaged
one get the default.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.entries import Entries

_FOLDER = "tuned-v1"
_SUFFIX = ".tuned"


@dataclass(frozen=True)
class Tuned:
    """The schedule that won for one bucket, and what was measured.

    Times are in milliseconds, shapes are rows, columns and depth.
    `interval` is the 95 % interval of `ms / default_ms`; `tried` has each schedule with its time relative to the
    default's, or the reason why it was dropped.
    """

    program: str
    dtypes: dict[str, str]
    outputs: list[str]
    inputs: list[str]
    shape: list[int]
    bucket: list[int]
    config: str
    ms: float
    default: str
    default_ms: float
    interval: list[float]
    tried: dict[str, float | str]
    gpu: str
    driver: str | None
    date: str
    versions: dict[str, str]


class TunedStore(Entries[Tuned]):
    """The tuned schedules below a cache's folder."""

    def __init__(self, cache: Cache | None = None) -> None:
        super().__init__((Cache() if cache is None else cache).root / _FOLDER, _SUFFIX, _encode, _decode)


def _encode(key: str, tuned: Tuned) -> bytes:
    body = json.dumps(asdict(tuned), sort_keys=True)
    return json.dumps({"check": _check(key, body), "tuned": body}).encode()


def _decode(key: str, data: bytes) -> Tuned | None:
    try:
        head = json.loads(data)
        if head["check"] != _check(key, head["tuned"]):
            return None
        fields: dict[str, Any] = json.loads(head["tuned"])
        return Tuned(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _check(key: str, body: str) -> str:
    return hashlib.sha256(f"{key}\n{body}".encode()).hexdigest()
