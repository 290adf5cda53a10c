"""`coda-run list [FILE…]`: what files offer. Needs the syntax only, so it also works on programs with type errors."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from coda_lang.cli import terminal
from coda_lang.cli.arguments import UsageError
from coda_lang.cli.programs import source
from coda_lang.errors import CodaError
from coda_lang.parser import parse, syntax, unparse


def run(options: argparse.Namespace) -> int:
    paths = options.files or [
        str(p) for folder in (".", "programs") for p in sorted(Path(folder).glob("*.coda")) if p.is_file()
    ]
    if not paths:
        raise UsageError("there are no .coda files in this folder or in ./programs", "name them: coda-run list FILE…")
    files: list[tuple[str, syntax.File]] = []
    code = 0
    for path in paths:
        try:
            files.append((path, parse(source(path))))
        except CodaError as error:
            terminal.diagnostics(error.diagnostics)
            code = max(code, 1)
        except UsageError as error:
            terminal.error(str(error), error.help)
            code = 2
    if options.json:
        terminal.print_json([_as_json(path, file) for path, file in files])
    else:
        print("\n\n".join(_shown(path, file) for path, file in files))
    return code


def _offers(file: syntax.File) -> list[tuple[str, str, str, str | None]]:
    """Kind, name, signature and documentation of each definition."""
    found: list[tuple[str, str, str, str | None]] = []
    for d in file.definitions:
        match d:
            case syntax.KernelDef():
                found.append((d.kind, d.name, unparse.kernel_signature(d), d.doc))
            case syntax.Function():
                found.append(("fn", d.name, unparse.function_signature(d), d.doc))
            case syntax.Const():
                found.append(("const", d.name, f"{d.name} = {unparse.expression(d.value)}", d.doc))
    return found


def _imports(file: syntax.File) -> list[str]:
    return [n.alias or n.name for d in file.definitions if isinstance(d, syntax.Import) for n in d.names]


def _first_line(doc: str | None) -> str:
    return doc.strip().split("\n")[0].strip() if doc else ""


def _shown(path: str, file: syntax.File) -> str:
    lines = [terminal.paint(path, "bold")]
    if file.doc:
        lines.append(f"  {_first_line(file.doc)}")
    for kind, _, signature, doc in _offers(file):
        first, *rest = _wrapped(f"{kind} {signature}")
        lines.append(f"  {terminal.paint(kind, 'cyan')}{first[len(kind) :]}")
        lines += [f"        {line}" for line in rest]
        if doc:
            lines.append(terminal.paint(f"      {_first_line(doc)}", "dim"))
    if _imports(file):
        first, *rest = _wrapped(f"imported {', '.join(_imports(file))}")
        lines.append(f"  {terminal.paint('imported', 'cyan')}{first[len('imported') :]}")
        lines += [f"        {line}" for line in rest]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Lines that a terminal shows whole, broken between the items of a signature; in a pipe, one line."""
    if not sys.stdout.isatty():
        return [text]
    glued = re.sub(r"[\[<][^\[\]<>]*[\]>]", lambda m: m[0].replace(" ", "\0"), text.replace("<-", "\1"))
    glued = glued.replace(": ", ":\0").replace("inout ", "inout\0").replace(" -> (", " ->\0(")
    width = max(40, shutil.get_terminal_size().columns - 9)
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ").replace("\1", "<-") for line in lines] or [""]


def _as_json(path: str, file: syntax.File) -> dict[str, Any]:
    keys = ("kind", "name", "signature", "doc")
    offers = [dict(zip(keys, offer, strict=True)) for offer in _offers(file)]
    return {"path": path, "doc": file.doc, "offers": offers, "imports": _imports(file)}
