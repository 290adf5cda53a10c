"""A folder of entries, one file each, shared by processes without locks.

Writers make private files and rename them, so that a reader sees a whole entry or none, and a killed writer leaves only
a temporary file. `decode` checks what is read: a damaged entry is removed, and is as good as none.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from coda_lang.backend_cutlass.files import TEMPORARY, write_atomically

T = TypeVar("T")
_STALE_SECONDS = 3600.0  # a temporary file older than this has lost its writer


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One sound entry: `size` of the file in bytes, `modified` in seconds since the epoch."""

    key: str
    path: Path
    size: int
    modified: float
    value: T


@dataclass(frozen=True)
class Entries(Generic[T]):
    """The entries below a folder, in files that end in `suffix`; `decode` gives None for a damaged one."""

    folder: Path
    suffix: str
    encode: Callable[[str, T], bytes]
    decode: Callable[[str, bytes], T | None]

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + self.suffix)

    def get(self, key: str) -> T | None:
        """The value of a key; None if there is none, or it was damaged (and is now gone)."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value = self.decode(key, data)
        if value is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return value

    def put(self, key: str, value: T) -> Path:
        """Writes an entry.

        Raises:
            OSError: the folder cannot be written or the disk is full; no entry is left behind.
        """
        path = self.path(key)
        write_atomically(path, self.encode(key, value))
        for leftover in path.parent.glob(TEMPORARY + "*"):
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                    leftover.unlink()
        return path

    def show(self) -> list[Entry[T]]:
        """All sound entries, newest first."""
        found = []
        for path in self._files():
            key = path.name.removesuffix(self.suffix)
            try:
                stat, value = path.stat(), self.decode(key, path.read_bytes())
            except OSError:
                continue  # removed meanwhile
            if value is not None:
                found.append(Entry(key, path, stat.st_size, stat.st_mtime, value))
        return sorted(found, key=lambda e: -e.modified)

    def clear(self) -> tuple[int, int]:
        """Removes the entries, and what killed writers left; how many entries that were, and all bytes freed."""
        entries = freed = 0
        for path in self._files(unfinished=True):
            size = removed(path)
            freed += size or 0
            entries += size is not None and path.name.endswith(self.suffix)
        return entries, freed

    def _files(self, *, unfinished: bool = False) -> Iterator[Path]:
        """The entries, or those and what killed writers left."""
        for folder in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.name.endswith(self.suffix) or (unfinished and path.name.startswith(TEMPORARY)):
                    yield path


def removed(path: Path) -> int | None:
    """Removes a file; its bytes, or None if it could not be."""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        path.unlink()
        return size
    return None
