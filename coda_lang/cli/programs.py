"""Files and kernels as the command line names them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coda_lang.cli.arguments import COMMANDS, UsageError
from coda_lang.errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from coda_lang.ir.module import Module
    from coda_lang.ir.program import Block, Kernel
    from coda_lang.source import Source

STDIN = "-"


def source(path: str) -> Source:
    """The text of a file, or of standard input for `-`. Raises ArgumentError if it cannot be read, or CodaError."""
    from coda_lang.parser import read_source
    from coda_lang.source import Source

    try:
        if path == STDIN:
            if sys.stdin is None:
                raise UsageError("standard input is closed")
            return Source("<stdin>", sys.stdin.buffer.read().decode("utf-8-sig"))
        return read_source(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def load(path: str) -> Module:
    """A checked file. Raises ArgumentError if it cannot be read, or CodaError with its mistakes."""
    from coda_lang.ir.check import check_file, check_text

    if path == STDIN:
        text = source(path)
        return check_text(text.text, text.path)
    try:
        return check_file(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError | ValueError) -> ArgumentError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    help = None
    if isinstance(error, IsADirectoryError):
        help = f"pass its files: {path.rstrip('/')}/*.coda"
    elif isinstance(error, FileNotFoundError):
        near = Path("programs") / f"{path.removesuffix('.coda')}.coda"
        folder = Path(path).parent
        siblings = [str(folder / p.name) for p in folder.glob("*.coda")] if folder.is_dir() else []
        if "." not in path and "/" not in path and did_you_mean(path, COMMANDS):
            help = f"{did_you_mean(path, COMMANDS)} That is a command."
        elif near.is_file():
            help = f"did you mean `{near}`?"
        else:
            help = did_you_mean(path, siblings)
    return UsageError(f"cannot read {path}: {reason}", help)


def own(module: Module) -> list[Kernel | Block]:
    """What a file defines itself, in its order."""
    return [d for d in module.programs.values() if Path(d.span.source.path) == Path(module.path)]


def choose(module: Module, name: str | None) -> Kernel | Block:
    """The kernel or block of this name; without one, that of the file's name, else its first. Raises UsageError."""
    known = module.programs
    if name is not None:
        if name in known:
            return known[name]
        names = ", ".join(known) or "none"
        raise UsageError(f"{module.path} has no kernel `{name}`", did_you_mean(name, known) or f"it has {names}")
    found = own(module) or list(known.values())
    if not found:
        raise UsageError(f"{module.path} defines no kernel to run", f"`coda-run list {module.path}` shows what it has")
    return next((d for d in found if d.name == Path(module.path).stem), found[0])


def choose_kernel(module: Module, name: str | None) -> Kernel:
    """As `choose`, for what shows one launch. Raises UsageError for a block."""
    from coda_lang.ir.program import Block

    found = choose(module, name)
    if isinstance(found, Block):
        names = ", ".join(k.name for k in found.kernels())
        raise UsageError(f"{found.name} is a block, and this shows one kernel", f"name one that it launches: {names}")
    return found
