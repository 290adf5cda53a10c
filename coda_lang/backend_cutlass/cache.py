"""Compiled kernels on disk, shared by processes without locks.

An entry is one file, named by the digest of everything that the compile depends on: a line of JSON with a checksum,
then the cubin. Writers make private files and rename them, so that two processes that compile the same kernel at
once cost time, never a wrong or half-written entry, and a killed one leaves only a temporary file. Readers check
the checksum: a damaged entry is removed and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coda_lang.backend_cutlass.files import TEMPORARY, write_atomically
from coda_lang.folders import cache_root

FORMAT = 1  # of the entries: part of the folder's name and of every key
_MAGIC = "coda-kernel"
_SUFFIX = ".kernel"
_STALE_SECONDS = 3600.0  # a temporary file older than this has lost its writer


def key_of(*parts: str) -> str:
    """A digest of the parts; no two lists of parts share their bytes, since each part's length goes in too."""
    whole = hashlib.sha256(f"{_MAGIC} {FORMAT}\n".encode())
    for part in parts:
        data = part.encode()
        whole.update(f"{len(data)}\n".encode())
        whole.update(data)
    return whole.hexdigest()


@dataclass(frozen=True)
class Entry:
    """One cached kernel, for ``coda-run cache show``: `info` is what `put` was given."""

    key: str
    path: Path
    size: int  # of the file
    modified: float  # seconds since the epoch
    info: dict[str, Any]


class Cache:
    """The entries below a folder (`cache_root()` unless given)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() if root is None else root

    @property
    def _kernels(self) -> Path:
        return self.root / f"kernels-v{FORMAT}"

    @property
    def memo(self) -> Path:
        """Where digests of header folders are remembered."""
        return self.root / f"headers-v{FORMAT}"

    @property
    def failed(self) -> Path:
        """Where sources that did not compile are kept, with their logs, for a report."""
        return self.root / "failed"

    def path(self, key: str) -> Path:
        return self._kernels / key[:2] / (key + _SUFFIX)

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """An entry's information and cubin; None if there is none or it was damaged (and is now gone)."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _decode(key, data)
        if entry is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return entry

    def put(self, key: str, info: dict[str, Any], cubin: bytes) -> None:
        """Writes an entry.

        Raises:
            OSError: the folder cannot be written or the disk is full; no entry is left behind.
        """
        path = self.path(key)
        write_atomically(path, _encode(key, info, cubin))
        for leftover in path.parent.glob(TEMPORARY + "*"):
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                    leftover.unlink()

    def show(self) -> list[Entry]:
        """All sound entries, newest first."""
        found = []
        for path in self._files():
            key = path.name[: -len(_SUFFIX)]
            try:
                stat, decoded = path.stat(), _decode(key, path.read_bytes())
            except OSError:
                continue  # removed meanwhile
            if decoded is not None:
                found.append(Entry(key, path, stat.st_size, stat.st_mtime, decoded[0]))
        return sorted(found, key=lambda e: -e.modified)

    def clear(self) -> tuple[int, int]:
        """Removes what this module wrote, and nothing else; how many kernels that were, and all bytes freed."""
        kernels = freed = 0
        others = [p for folder in (self.memo, self.failed) if folder.is_dir() for p in folder.iterdir() if p.is_file()]
        for path in (*self._files(unfinished=True), *others):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                freed += size
                kernels += path.name.endswith(_SUFFIX)
        return kernels, freed

    def _files(self, *, unfinished: bool = False) -> Iterator[Path]:
        """The entries, or those and what killed writers left."""
        for folder in sorted(self._kernels.iterdir()) if self._kernels.is_dir() else ():
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.name.endswith(_SUFFIX) or (unfinished and path.name.startswith(TEMPORARY)):
                    yield path


def _encode(key: str, info: dict[str, Any], cubin: bytes) -> bytes:
    body = json.dumps(info, sort_keys=True)
    check = hashlib.sha256(key.encode() + body.encode() + cubin).hexdigest()
    head = {"magic": _MAGIC, "check": check, "size": len(cubin), "info": body}
    return json.dumps(head).encode() + b"\n" + cubin


def _decode(key: str, data: bytes) -> tuple[dict[str, Any], bytes] | None:
    line, _, cubin = data.partition(b"\n")
    try:
        head = json.loads(line)
        body = head["info"]
        check = hashlib.sha256(key.encode() + body.encode() + cubin).hexdigest()
        if head["magic"] != _MAGIC or head["size"] != len(cubin) or head["check"] != check:
            return None
        info = json.loads(body)
        return (info, cubin) if isinstance(info, dict) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
