"""Compiled kernels on disk, shared by processes without locks.

An entry is named by the digest of everything that the compile depends on, and holds a line of JSON with a checksum,
then the cubin. Two processes that compile the same kernel at once cost time, never a wrong or half-written entry.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from coda_lang.backend_cutlass.entries import Entries, Entry, removed
from coda_lang.folders import cache_root

FORMAT = 1  # of the entries: part of the folder's name and of every key
_MAGIC = "coda-kernel"
Kept = tuple[dict[str, Any], bytes]  # what `put` was told of a kernel, and the cubin


def key_of(*parts: str) -> str:
    """A digest of the parts; no two lists of parts share their bytes, since each part's length goes in too."""
    whole = hashlib.sha256(f"{_MAGIC} {FORMAT}\n".encode())
    for part in parts:
        data = part.encode()
        whole.update(f"{len(data)}\n".encode())
        whole.update(data)
    return whole.hexdigest()


class Cache:
    """The entries below a folder (`cache_root()` unless given)."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() if root is None else root

    @property
    def _kernels(self) -> Entries[Kept]:
        return Entries(self.root / f"kernels-v{FORMAT}", ".kernel", _encode, _decode)

    @property
    def memo(self) -> Path:
        """Where digests of header folders are remembered."""
        return self.root / f"headers-v{FORMAT}"

    @property
    def failed(self) -> Path:
        """Where sources that did not compile are kept, with their logs, for a report."""
        return self.root / "failed"

    def path(self, key: str) -> Path:
        return self._kernels.path(key)

    def get(self, key: str) -> Kept | None:
        """An entry's information and cubin; None if there is none or it was damaged (and is now gone)."""
        return self._kernels.get(key)

    def put(self, key: str, info: dict[str, Any], cubin: bytes) -> None:
        """Writes an entry.

        Raises:
            OSError: the folder cannot be written or the disk is full; no entry is left behind.
        """
        self._kernels.put(key, (info, cubin))

    def show(self) -> list[Entry[Kept]]:
        """All sound entries, newest first."""
        return self._kernels.show()

    def clear(self) -> tuple[int, int]:
        """Removes what this module wrote, and nothing else; how many kernels that were, and all bytes freed."""
        kernels, freed = self._kernels.clear()
        others = [p for folder in (self.memo, self.failed) if folder.is_dir() for p in folder.iterdir() if p.is_file()]
        return kernels, freed + sum(removed(path) or 0 for path in others)


def _encode(key: str, kept: Kept) -> bytes:
    info, cubin = kept
    body = json.dumps(info, sort_keys=True)
    check = hashlib.sha256(key.encode() + body.encode() + cubin).hexdigest()
    head = {"magic": _MAGIC, "check": check, "size": len(cubin), "info": body}
    return json.dumps(head).encode() + b"\n" + cubin


def _decode(key: str, data: bytes) -> Kept | None:
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
