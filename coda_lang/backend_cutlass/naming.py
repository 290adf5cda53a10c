"""Names of a program as C identifiers."""

from __future__ import annotations


def identifier(name: str) -> str:
    """`name` in ASCII: other letters by their code, the mark of `abi.output_key` as ``_out``.

    Emitted names carry a prefix besides, so that none is a keyword or a name of ours.
    """
    return "".join(
        c if (c.isascii() and c.isalnum()) or c == "_" else "_out" if c == "'" else f"_u{ord(c):x}_" for c in name
    )


def of_entry(entry: str) -> str:
    """The kernel that an entry function is made of, as messages name it."""
    return entry.removeprefix("cutlass_").removeprefix("coda_")
