"""The form of a program that a command line asks for: what is compiled, without a call."""

from __future__ import annotations

import argparse
from typing import Any

from coda_lang.api import Program
from coda_lang.call import Call
from coda_lang.cli import terminal
from coda_lang.cli.arguments import UsageError, collected
from coda_lang.cli.programs import choose_kernel, load
from coda_lang.ir.program import Kernel
from coda_lang.measure.described import described_call


def program(file: str, kernel: str | None, config: str | None) -> Program:
    """The program, its file's warnings shown. Raises UsageError for a schedule that it cannot have."""
    module = load(file)
    terminal.diagnostics(module.warnings)
    found = Program(choose_kernel(module, kernel))
    if config is not None and found.ir.product is None:
        raise UsageError(f"{found.name} is a {found.kind} and has no schedule to choose", "leave out --config")
    return found


def call(program: Program, options: argparse.Namespace) -> Call[Kernel]:
    """The call that `--dim` and the form's options describe, on packed arrays that exist by address only."""
    return described_call(program.ir, **request(options))


def request(options: argparse.Namespace) -> dict[str, Any]:
    """What `tune`, `bench` and `described_call` make a call from."""
    sizes = collected("--dim", [pair for pairs in options.dim for pair in pairs])
    return {"sizes": sizes, **_chosen(options)}


def choices(options: argparse.Namespace) -> dict[str, Any]:
    """What `Program.compile` and `GpuProgram.emitted` are given."""
    return {"config": options.config, **_chosen(options)}


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    dtypes = collected("--dtype", options.dtype)
    return {"dtypes": dtypes, "inputs": options.inputs, "outputs": options.outputs}
