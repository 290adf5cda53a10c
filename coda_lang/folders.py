"""Where files are kept between processes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """CODA_CACHE_DIR, else ``coda-lang`` in XDG_CACHE_HOME (where relative paths do not count) or in ``~/.cache``."""
    own = os.environ.get("CODA_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~")) / ".cache"
    return base / "coda-lang"


def own_cache_root() -> Path | None:
    """The same, made if need be, if nobody but the user can write there; None otherwise."""
    root = cache_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = root.stat()
    except OSError:
        return None
    mine = not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)
    return root if mine and os.access(root, os.W_OK) else None
