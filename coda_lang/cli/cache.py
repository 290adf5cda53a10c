"""`coda-run cache show|clear`: the compiled kernels on disk."""

from __future__ import annotations

import argparse
import time

from coda_lang.backend_cutlass import elf
from coda_lang.backend_cutlass.cache import Cache, Entry
from coda_lang.backend_cutlass.naming import of_entry
from coda_lang.cli import units
from coda_lang.cli.table import Column, table


def run(options: argparse.Namespace) -> int:
    cache = Cache()
    if options.action == "clear":
        kernels, freed = cache.clear()
        print(f"removed {_count(kernels)} from {cache.root}, {units.size(freed)} in all")
        return 0
    entries = cache.show()
    if entries:
        columns = [
            Column("kernel"),
            Column("size", right=True),
            Column("age", right=True),
            Column("arch"),
            Column("key"),
        ]
        now = time.time()
        rows = [
            [
                _kernel(cache, e),
                units.size(e.size),
                units.age(now - e.modified),
                str(e.info.get("arch", "?")),
                e.key[:16],
            ]
            for e in entries
        ]
        print(table(columns, rows))
        print()
    print(f"{_count(len(entries))}, {units.size(sum(e.size for e in entries))} in {cache.root}")
    return 0


def _count(kernels: int) -> str:
    return f"{kernels} kernel{'' if kernels == 1 else 's'}"


def _kernel(cache: Cache, entry: Entry) -> str:
    """The kernel's name: the cubin has it, as that of its one function."""
    found = cache.get(entry.key)
    try:
        sections = elf.sections(found[1]) if found is not None else []
    except elf.BadElfError:
        return "?"
    name = next((s.name.removeprefix(".text.") for s in sections if s.name.startswith(".text.")), "?")
    return of_entry(name)
