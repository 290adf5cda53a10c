"""`coda-run cuda FILE [KERNEL]`: the CUDA source that is generated."""

from __future__ import annotations

import argparse

from coda_lang.cli import form


def run(options: argparse.Namespace) -> int:
    program = form.program(options.file, options.kernel, options.config)
    emitted, _ = program.gpu.emitted(**form.choices(options))
    print(emitted.source, end="")
    return 0
