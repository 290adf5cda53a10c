"""Writing a file that other processes may read at any moment."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

TEMPORARY = ".tmp-"  # the prefix of a file that is being written


def write_atomically(path: Path, data: bytes) -> None:
    """Makes `path` hold `data`: readers see the old file or the whole new one, also after a crash or a power cut.

    Raises:
        OSError: the folder cannot be made or written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    except OSError:
        pass  # some file systems cannot; the data is safe, the name may be lost in a power cut
    finally:
        os.close(folder)
