"""`coda-run cubin FILE [KERNEL]`: compile a kernel, keep the machine code, and say what the compiler reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from coda_lang.backend_cutlass.files import write_atomically
from coda_lang.backend_cutlass.program import Compiled
from coda_lang.backend_cutlass.report import Report
from coda_lang.cli import form, terminal
from coda_lang.cli.units import kib


def run(options: argparse.Namespace) -> int:
    program = form.program(options.file, options.kernel, options.config)
    done = program.compile(options.arch, **form.choices(options))
    if options.output is not None:
        write_atomically(Path(options.output), done.cubin)
    if options.json:
        config = None if done.config is None else str(done.config)
        terminal.print_json({"kernel": program.name, "config": config, **done.report.to_json()})
        return 0
    print(terminal.paint(program.name, "bold"))
    for title, text in _lines(done):
        print(f"{title:<14} {text}")
    for text in done.report.warnings:
        terminal.warning(text)
    if options.output is not None:
        print(f"\nwrote {options.output}")
    return 0


def _lines(done: Compiled) -> list[tuple[str, str]]:
    r = done.report
    lines = [("schedule", str(done.config))] if done.config is not None else []
    if done.emitted.tile is not None:
        lines.append(("tile", "x".join(map(str, done.emitted.tile))))
    spills = f"{r.spill_store_bytes} bytes stored, {r.spill_load_bytes} loaded"
    return [
        *lines,
        ("registers", f"{r.registers} a thread at launch, {done.emitted.threads} threads a block"),
        ("spills", spills if r.spill_store_bytes or r.spill_load_bytes else "none"),
        ("local memory", f"{r.stack_bytes} bytes a thread" if r.stack_bytes else "none"),
        ("shared memory", f"{kib(r.static_shared_bytes + r.dynamic_shared_bytes)} a block"),
        ("tensor cores", f"{r.tensor_core_instructions} HGMMA or QGMMA instructions"),
        ("cubin", f"{kib(r.cubin_bytes)} for {r.arch}, by NVRTC {r.nvrtc}"),
        ("time", _time(r)),
    ]


def _time(r: Report) -> str:
    emission = f"{r.emit_seconds:.2f} s to generate the source"
    if r.cached:
        return f"{emission}, {r.compile_seconds:.2f} s from the cache (compiled in {r.built_seconds:.2f} s once)"
    return f"{emission}, {r.compile_seconds:.2f} s to compile"
