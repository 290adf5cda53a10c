"""Tuned schedules on disk, beside the compiled kernels.

An entry is one file, named by its key: JSON with a checksum. Writers rename private files into place, so processes
that tune at once leave the entry of the last, whole; a damaged one is removed when it is read, and its calls get the
default.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.files import TEMPORARY, write_atomically

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


@dataclass(frozen=True)
class Entry:
    """One tuned schedule, for ``coda-run cache show``."""

    key: str
    path: Path
    size: int  # of the file
    modified: float  # seconds since the epoch
    tuned: Tuned


class TunedStore:
    """The entries below a cache's folder."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._folder = (Cache() if cache is None else cache).root / _FOLDER

    def path(self, key: str) -> Path:
        return self._folder / key[:2] / (key + _SUFFIX)

    def get(self, key: str) -> Tuned | None:
        """The entry of that key; None if there is none, or it was damaged (and is now gone)."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        found = _decode(key, data)
        if found is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return found

    def put(self, key: str, tuned: Tuned) -> Path:
        """Writes an entry.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.path(key)
        write_atomically(path, _encode(key, tuned))
        return path

    def show(self) -> list[Entry]:
        """All sound entries, newest first."""
        found = []
        for path in self._files():
            key = path.name.removesuffix(_SUFFIX)
            try:
                stat, tuned = path.stat(), _decode(key, path.read_bytes())
            except OSError:
                continue  # removed meanwhile
            if tuned is not None:
                found.append(Entry(key, path, stat.st_size, stat.st_mtime, tuned))
        return sorted(found, key=lambda e: -e.modified)

    def clear(self) -> tuple[int, int]:
        """Removes the entries, and what killed writers left; how many entries that were, and all bytes freed."""
        entries = freed = 0
        for path in self._files(unfinished=True):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                freed += size
                entries += path.name.endswith(_SUFFIX)
        return entries, freed

    def _files(self, *, unfinished: bool = False) -> Iterator[Path]:
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.name.endswith(_SUFFIX) or (unfinished and path.name.startswith(TEMPORARY)):
                    yield path


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
