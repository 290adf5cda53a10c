"""`coda-run cache show|clear`: the compiled kernels and tuned schedules on disk."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from coda_lang.backend_cutlass import elf
from coda_lang.backend_cutlass.cache import Cache, Kept
from coda_lang.backend_cutlass.entries import Entry
from coda_lang.backend_cutlass.naming import of_entry
from coda_lang.cli import units
from coda_lang.cli.table import Column, table
from coda_lang.tuning.store import Tuned, TunedStore


def run(options: argparse.Namespace) -> int:
    cache, tuned = Cache(), TunedStore()
    if options.action == "clear":
        kernels, freed = cache.clear()
        count, more = tuned.clear()
        print(f"removed {_all(kernels, count)} from {cache.root}, {units.size(freed + more)} in all")
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
                str(e.value[0].get("arch", "?")),
                e.key[:16],
            ]
            for e in entries
        ]
        print(table(columns, rows))
        print()
    schedules = tuned.show()
    if schedules:
        print(f"{_tuned(schedules)}\n")
    size = sum(e.size for e in entries) + sum(e.size for e in schedules)
    print(f"{_all(len(entries), len(schedules))}, {units.size(size)} in {cache.root}")
    return 0


def _all(kernels: int, schedules: int) -> str:
    text = f"{kernels} kernel{'' if kernels == 1 else 's'}"
    return f"{text} and {schedules} tuned schedule{'' if schedules == 1 else 's'}" if schedules else text


def _tuned(entries: Sequence[Entry[Tuned]]) -> str:
    columns = [Column("tuned"), Column("types"), Column("up to"), Column("schedule"), Column("/ default", right=True)]
    columns += [Column("age", right=True), Column("GPU")]
    now = time.time()
    rows = []
    for e in entries:
        t = e.value
        types, bucket = " ".join(t.dtypes.values()) or "–", "×".join(map(str, t.bucket))
        ratio = f"{t.interval[0]:.3f}"
        rows.append([t.program, types, bucket, t.config, ratio, units.age(now - e.modified), t.gpu])
    return table(columns, rows)


def _kernel(cache: Cache, entry: Entry[Kept]) -> str:
    """The kernel's name: the cubin has it, as that of its one function."""
    found = cache.get(entry.key)
    try:
        sections = elf.sections(found[1]) if found is not None else []
    except elf.BadElfError:
        return "?"
    name = next((s.name.removeprefix(".text.") for s in sections if s.name.startswith(".text.")), "?")
    return of_entry(name)
