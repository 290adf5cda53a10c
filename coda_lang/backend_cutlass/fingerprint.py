"""The content of the files that a compile reads, as one digest that is cheap to check again.

The digest goes into the cache key, so it has to change whenever a byte of any header changes. Reading 50 MB of
headers takes a third of a second, so the digest of a folder is remembered under the stat data (size, both times,
inode) of every file in it: any write changes a file's ctime, which no tool sets back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from coda_lang.backend_cutlass.files import write_atomically

# A file changed within the clock's granularity of the reading may change again without a new ctime.
SETTLED_SECONDS = 2.0

Stat = tuple[str, int, int, int, int]


def content_digest(roots: Iterable[Path], memo: Path | None = None) -> str:
    """SHA-256 over the relative names and contents of all files under `roots` (folders or files), in order.

    `memo` is a folder in which digests are remembered; without it, or where it cannot be written, all is read again.

    Raises:
        OSError: a file cannot be read.
    """
    roots = [Path(r) for r in roots]
    stats = [list(_stats(root)) for root in roots]
    if memo is None:
        return _read(roots, stats)
    names = hashlib.sha256(repr([str(r) for r in roots]).encode()).hexdigest()
    signature = hashlib.sha256(repr(stats).encode()).hexdigest()
    entry = memo / f"{names[:32]}.json"
    try:
        known = json.loads(entry.read_text())
        if known["signature"] == signature:
            return str(known["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # unknown, unreadable or damaged: read the files
    digest = _read(roots, stats)
    newest = max((max(s[2], s[3]) for group in stats for s in group), default=0)
    if time.time_ns() - newest > SETTLED_SECONDS * 1e9 and [list(_stats(r)) for r in roots] == stats:
        with contextlib.suppress(OSError):  # a read-only cache: slower, not wrong
            write_atomically(entry, json.dumps({"signature": signature, "digest": digest}).encode())
    return digest


def _stats(root: Path) -> Iterator[Stat]:
    """(relative name, size, mtime, ctime, inode) of each file under a folder, sorted by name; of a file, its own."""
    if root.is_file():
        yield _stat("", root.stat())
        return
    stack, found = [("", str(root))], []
    while stack:
        prefix, folder = stack.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "__pycache__":
                    continue
                if entry.is_dir():
                    stack.append((f"{prefix}{entry.name}/", entry.path))
                else:
                    found.append(_stat(prefix + entry.name, entry.stat()))
    yield from sorted(found)


def _stat(name: str, stat: os.stat_result) -> Stat:
    return name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _read(roots: list[Path], stats: list[list[Stat]]) -> str:
    whole = hashlib.sha256()
    for root, group in zip(roots, stats, strict=True):
        for name, *_ in group:
            with open(root / name if name else root, "rb") as file:
                one = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(os.fsencode(f"{len(name)}:{name}:{one}\n"))
        whole.update(b"--\n")
    return whole.hexdigest()
