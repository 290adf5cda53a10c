"""Names of a program as C identifiers. Different names stay different, whatever they look like."""

from __future__ import annotations

import re

_MARK = "_0x"  # begins a letter that C does not have, written by its code: é is _0xe9_


def identifier(name: str) -> str:
    """`name` in ASCII, as `name_of` reads it back: an underscore that would begin `_MARK` is written by its code too.

    Emitted names carry a prefix besides, so that none is a keyword or a name of ours.
    """
    return "".join(
        c if c.isascii() and (c.isalnum() or c == "_") and not name.startswith(_MARK, i) else f"{_MARK}{ord(c):x}_"
        for i, c in enumerate(name)
    )


def name_of(identifier: str) -> str:
    """The name that `identifier` spelled."""
    return re.sub(f"{_MARK}([0-9a-f]+)_", lambda code: chr(int(code[1], 16)), identifier)


def joined(kind: str, *names: str) -> str:
    """One identifier of names, told apart by the lengths of all but the last: ``tilesof_1_N_x``.

    `kind` has no underscore, and always as many names: so no two kinds meet, nor two lists of names of one.
    """
    *first, last = map(identifier, names)
    return "_".join([kind, *(f"{len(part)}_{part}" for part in first), last])


def of_entry(entry: str) -> str:
    """The kernel that an entry function is made of, as messages name it."""
    return name_of(entry.removeprefix("cutlass_").removeprefix("coda_"))
