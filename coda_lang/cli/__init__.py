"""The command line, `coda-run`. What a command needs is imported when it runs: help comes at once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from coda_lang.errors import ArgumentError, BackendError, CodaError

RIGHT, PROGRAM_WRONG, CALL_WRONG = 0, 1, 2
INTERNAL, INTERRUPTED, BROKEN_PIPE = 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0: right. 1: the program is wrong. 2: the call is wrong. 130: interrupted. 141: the reader of a pipe is gone.
    70: a defect of this package; CODA_DEBUG=1 shows the traceback.
    """
    gc.set_threshold(200_000)  # a short process whose trees have few cycles: a sixth of the time to start
    # OpenBLAS's threads spin for 2²⁶ cycles after a product, beside the interpreter's own; read when NumPy is imported.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")

    from coda_lang.cli import terminal

    terminal.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except SystemExit as error:  # argparse, after --help and --version
        code = error.code if isinstance(error.code, int) else RIGHT
        code = _flushed(code)
    except BrokenPipeError:
        code = _pipe_is_gone()
    except KeyboardInterrupt:
        terminal.error("interrupted")
        code = INTERRUPTED
    except CodaError as error:
        terminal.diagnostics(error.diagnostics)
        code = CALL_WRONG if all(d.code == "E0001" for d in error.diagnostics) else PROGRAM_WRONG
    except BackendError as error:
        terminal.error(error.message, terminal.without_python(error.help))
        code = CALL_WRONG
    except ArgumentError as error:
        terminal.error(*_message_and_help(error))
        code = CALL_WRONG
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        terminal.error(f"{where}{error.strerror or error}")
        code = CALL_WRONG
    except MemoryError as error:
        terminal.error(f"not enough memory: {error}" if str(error) else "not enough memory", "choose smaller axes")
        code = CALL_WRONG
    except Exception as error:
        if os.environ.get("CODA_DEBUG"):
            raise
        text = f"a defect of coda_lang, not of your program: {type(error).__name__}: {error}"
        terminal.error(text, "please report it; CODA_DEBUG=1 shows the traceback")
        code = INTERNAL
    return code


def _dispatch(argv: list[str]) -> int:
    """The first word is a command, or else the file to run; `./check` is a file."""
    from importlib import import_module

    from coda_lang.cli.arguments import COMMANDS, command_parser, run_parser

    if argv and argv[0] in COMMANDS:
        name = argv[0]
        options = command_parser(name).parse_intermixed_args(argv[1:])
    else:
        name = "run"
        options = run_parser().parse_intermixed_args(argv)
    module = "listing" if name == "list" else name  # a module `list` would hide the built-in one here
    code: int = import_module(f"coda_lang.cli.{module}").run(options)
    return code


def _message_and_help(error: ArgumentError) -> tuple[str, str | None]:
    help = getattr(error, "help", None)
    return str(error), help if isinstance(help, str) else None


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_is_gone()
    return code


def _pipe_is_gone() -> int:
    """Nobody reads on: stop quietly, and keep the interpreter from complaining when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
