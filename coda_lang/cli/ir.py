"""`coda-run ir FILE [KERNEL]`: the typed form that the backends work on."""

from __future__ import annotations

import argparse

from coda_lang.cli import terminal
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.programs import choose, load, own
from coda_lang.ir.show import show


def run(options: argparse.Namespace) -> int:
    module = load(options.file)
    terminal.diagnostics(module.warnings)
    chosen = [choose(module, options.kernel)] if options.kernel is not None else own(module)
    if not chosen:
        raise UsageError(f"{module.path} defines no kernel", f"`coda-run list {module.path}` shows what it has")
    print("\n\n".join(map(show, chosen)))
    return 0
