"""What can be written behind `coda-run`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from coda_lang.errors import ArgumentError
from coda_lang.version import VERSION

BACKENDS = ("auto", "interp", "cuda")

RUN_EXAMPLES = """\
commands:
  coda-run check FILE…                  say what is wrong with programs, without running them
  coda-run fmt [--check|--diff] FILE…   bring programs into their canonical form, in place
  coda-run ir FILE [KERNEL]             show the typed form that the backends work on
  coda-run list [FILE…]                 what files offer: signatures and first lines of documentation
  coda-run explain [CODE]               what an error code means, with a wrong and a right program
  coda-run explain FILE [KERNEL]        how a call runs on the GPU: schedule, tiles, memory, the least time
  coda-run cuda FILE [KERNEL]           print the CUDA source that is generated
  coda-run cubin FILE [KERNEL]          compile it, and report registers, shared memory and times (needs no GPU)
  coda-run tune FILE [KERNEL]           find the fastest schedule of a call on this GPU, and keep it for later calls
  coda-run bench FILE [KERNEL]          time a call beside cuBLAS, torch.compile and other libraries
  coda-run cache show|clear             the compiled kernels and tuned schedules that are kept on disk
  `coda-run COMMAND --help` shows the options of each.

examples:
  coda-run programs/rmsnorm_swiglu.coda
  coda-run programs/swiglu.coda geglu --dim M=512 --dim K=256 --dtype T=f16
  coda-run programs/linear.coda --input a=a.npy --input b=weights.npz:w1 --input bias=random --out results
  coda-run programs/reduces.coda rstd_from_squares --scalar eps=1e-5 --json
  coda-run programs/cross_entropy.coda --outputs z,lse,t --tile 64x128 --exact
  coda-run programs/rmsnorm_swiglu.coda --compare --dim M=4096,N=4096,K=4096

FILE's main kernel is the one with the file's name, else its first. Inputs that no option gives are drawn at random
from the domains that the signature states, with small sizes that fit it; optional inputs are left out.
A file whose name is a command's is written with its folder: `coda-run ./check`.

exit codes: 0 right, 1 the program is wrong or --compare found an output outside its bound, 2 the call is wrong"""


CONFIG_HELP = (
    "the GPU's schedule, as in 128x256,cluster=2x1,cooperative (default: by the shape); docs/cli.md lists the parts"
)


class UsageError(ArgumentError):
    """The command line itself is wrong."""

    def __init__(self, message: str, help: str | None = None) -> None:
        self.help = help
        super().__init__(message)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"`{self.prog} --help` shows what can be written")


def _parser(prog: str, description: str, examples: str, usage: str | None = None) -> _Parser:
    return _Parser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def run_parser() -> argparse.ArgumentParser:
    usage = "coda-run FILE [KERNEL] [options]\n       coda-run COMMAND …"
    parser = _parser("coda-run", "Run a kernel of a .coda file and show what comes out.", RUN_EXAMPLES, usage)
    parser.add_argument("file", metavar="FILE", help="the program")
    parser.add_argument(
        "kernel", metavar="KERNEL", nargs="?", help="a kernel, map, reduce or block that it defines or imports"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--dim", metavar="M=512", type=_sizes, action="append", default=[], help="the length of an axis")
    data.add_argument(
        "--dtype", metavar="T=f16", type=_pair, action="append", default=[], help="a dtype parameter's type"
    )
    text = "an input from a .npy file or from a .npz (its key is the input's name, or NAME=FILE.npz:KEY); "
    text += "NAME=random draws an optional input"
    data.add_argument("--input", metavar="NAME=FILE", type=_pair, action="append", default=[], help=text)
    data.add_argument("--scalar", metavar="NAME=X", type=_pair, action="append", default=[], help="a scalar input")
    data.add_argument(
        "--cast", action="store_true", help="round inputs from files to the element types of the signature"
    )
    data.add_argument("--seed", metavar="N", type=_seed, default=0, help="of the random inputs (default 0)")
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--outputs", metavar="z,y", type=_names, help="what to compute (default: all but the optional ones)"
    )
    run.add_argument("--tile", metavar="128x256", type=_tile, help="rows and columns of a tile, for partials")
    run.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="where to run (default auto: the GPU if there is one)"
    )
    run.add_argument("--config", metavar="SCHEDULE", help=CONFIG_HELP)
    run.add_argument(
        "--compare",
        action="store_true",
        help="run on the GPU and the interpreter: each output's error beside its bound",
    )
    run.add_argument("--exact", action="store_true", help="evaluate in f64, rounding at the stores only")
    run.add_argument("--check-domains", action="store_true", help="verify that inputs lie in their domains")
    results = parser.add_argument_group("results")
    text = "write every output to DIR/NAME.npy (bf16 and f8 widened to f32, which keeps every value)"
    results.add_argument("--out", metavar="DIR", help=text)
    results.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--version", action="version", version=f"coda-run {VERSION}")
    return parser


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="programs; - is standard input")
    parser.add_argument("--json", action="store_true", help="print the diagnostics as a JSON list")


def _fmt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="programs; - is standard input, printed to standard output"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is not canonical")
    how.add_argument("--diff", action="store_true", help="change nothing; print what would change, and exit as --check")


def _ir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the program")
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="only this kernel (default: all that FILE defines)")


def _list(parser: argparse.ArgumentParser) -> None:
    text = "programs (default: the .coda files of this folder and of ./programs)"
    parser.add_argument("files", metavar="FILE", nargs="*", help=text)
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def _explain(parser: argparse.ArgumentParser) -> None:
    text = "an error code such as E0201 (default: list all codes), or a program"
    parser.add_argument("subject", metavar="CODE|FILE", nargs="?", help=text)
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="of FILE (default: as for running it)")
    call = parser.add_argument_group("the call of FILE")
    call.add_argument("--dim", metavar="M=512", type=_sizes, action="append", default=[], help="the length of an axis")
    _form(call)


def _form(parser: argparse._ActionsContainer) -> None:
    """What decides which kernel is compiled, beside the shape."""
    text = "a dtype parameter's type (default: its first choice)"
    parser.add_argument("--dtype", metavar="T=f16", type=_pair, action="append", default=[], help=text)
    parser.add_argument("--inputs", metavar="c,bias", type=_names, default=[], help="optional inputs that are passed")
    text = "what is computed (default: all but the optional ones)"
    parser.add_argument("--outputs", metavar="z,y", type=_names, help=text)
    parser.add_argument("--config", metavar="SCHEDULE", help=CONFIG_HELP)


def _cuda(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the program")
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="of FILE (default: as for running it)")
    _form(parser)


def _cubin(parser: argparse.ArgumentParser) -> None:
    _cuda(parser)
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="where to write the cubin (default: it stays in the cache)"
    )
    parser.add_argument(
        "--arch", metavar="ARCH", default="sm_90a", help="the architecture (default, and the only one: sm_90a)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as a JSON object")


def _call(parser: argparse.ArgumentParser) -> None:
    """A call on random arguments: its lengths, and which form of the program it is."""
    parser.add_argument("file", metavar="FILE", help="the program")
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="of FILE (default: as for running it)")
    parser.add_argument(
        "--dim", metavar="M=512", type=_sizes, action="append", default=[], help="the length of an axis"
    )
    text = "a dtype parameter's type (default: its first choice)"
    parser.add_argument("--dtype", metavar="T=f16", type=_pair, action="append", default=[], help=text)
    parser.add_argument("--inputs", metavar="c,bias", type=_names, default=[], help="optional inputs that are passed")
    text = "what is computed (default: all but the optional ones)"
    parser.add_argument("--outputs", metavar="z,y", type=_names, help=text)


def _tune(parser: argparse.ArgumentParser) -> None:
    _call(parser)
    text = "schedules that are compiled and timed beside the default (default 24)"
    parser.add_argument("--budget", metavar="N", type=_count, default=24, help=text)
    parser.add_argument("--top", metavar="N", type=_count, default=10, help="schedules that are shown (default 10)")
    parser.add_argument(
        "--all", action="store_true", help="show all that were tried, and each that was left out, with the reason"
    )
    text = (
        "compile and run nothing: the candidates in the model's order, with the times that it predicts (needs no GPU)"
    )
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.add_argument("--no-save", action="store_true", help="keep nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")


def _bench(parser: argparse.ArgumentParser) -> None:
    _call(parser)
    parser.add_argument("--config", metavar="SCHEDULE", help=CONFIG_HELP)
    parser.add_argument(
        "--peers", metavar="cublas,quack", type=_names, help="who is timed beside it (default: all that are installed)"
    )
    parser.add_argument("--untuned", action="store_true", help="peers that would tune themselves first do not")
    parser.add_argument("--rounds", metavar="N", type=_count, default=10, help="of the measurement (default 10)")
    parser.add_argument(
        "--json", metavar="FILE", help="write the results, samples included; - prints them in place of the table"
    )
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the times relative to cuBLAS's (needs matplotlib)")


def _cache(parser: argparse.ArgumentParser) -> None:
    text = "show lists kernels and tuned schedules; clear removes them, digests and kept sources of failed compiles"
    parser.add_argument("action", choices=("show", "clear"), help=text)


COMMANDS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], None]]] = {
    "check": (
        "Say what is wrong with programs: every mistake, where it is, and what to write instead.",
        "coda-run check programs/*.coda",
        _check,
    ),
    "fmt": (
        "Bring programs into their canonical form, in place. Comments are kept.",
        "coda-run fmt programs/*.coda\n  coda-run fmt --diff my.coda\n  coda-run fmt - < my.coda",
        _fmt,
    ),
    "ir": (
        "Show the typed intermediate form of a file's kernels: values, their types and classes, and the stores.",
        "coda-run ir programs/rmsnorm_swiglu.coda",
        _ir,
    ),
    "list": (
        "What files offer: signatures, and the first line of their documentation.",
        "coda-run list programs/swiglu.coda",
        _list,
    ),
    "explain": (
        "What an error code means, with a wrong and a right program.\nOr how a call runs on the GPU: its schedule "
        "and why others do not fit, tiles, shared memory, how each tensor is moved,\nand the least time that it takes.",
        "coda-run explain E0201\n  coda-run explain programs/rmsnorm_swiglu.coda --dim M=4096,N=28672,K=4096",
        _explain,
    ),
    "cuda": (
        "Print the CUDA source that is generated for a kernel, with the lines that it comes from.",
        "coda-run cuda programs/swiglu.coda geglu --dtype T=f16 --config 128x128,pingpong",
        _cuda,
    ),
    "cubin": (
        "Compile a kernel and report what the compiler says: registers, spills, shared memory, times. Needs no GPU.",
        "coda-run cubin programs/swiglu.coda\n  coda-run cubin programs/linear.coda --inputs c,bias -o linear.cubin",
        _cubin,
    ),
    "tune": (
        "Find the fastest schedule for calls of a shape on this GPU, and keep it: later calls of the same GPU, form\n"
        "and bucket of shapes use it (docs/backend.md). Candidates must compute what the default does.",
        "coda-run tune programs/rmsnorm_swiglu.coda --dim M=4096,N=28672,K=4096\n"
        "  coda-run tune programs/linear.coda --dim M=512,N=4096,K=4096 --inputs bias --budget 40\n"
        "  coda-run tune programs/swiglu_bwd.coda --dim M=16384,N=11008,K=4096 --dry-run",
        _tune,
    ),
    "bench": (
        "Time a call on this GPU beside cuBLAS's plain product, torch.compile of the same work, and QuACK and Liger\n"
        "where they are installed and have a counterpart; interleaved in one process (docs/benchmarks.md).",
        "coda-run bench programs/rmsnorm_swiglu.coda --dim M=4096,N=4096,K=4096\n"
        "  coda-run bench programs/cross_entropy.coda --dim M=4096,N=32768,K=4096 --outputs lse,t --json ce.json",
        _bench,
    ),
    "cache": (
        "The compiled kernels and tuned schedules that are kept on disk (CODA_CACHE_DIR; by default coda-lang in the\n"
        "user's cache folder).",
        "coda-run cache show\n  coda-run cache clear",
        _cache,
    ),
}


def command_parser(name: str) -> argparse.ArgumentParser:
    description, example, fill = COMMANDS[name]
    parser = _parser(f"coda-run {name}", description, f"examples:\n  {example}")
    fill(parser)
    return parser


# -- values of options -------------------------------------------------------------------------------------------------


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got `{text}`")
    return name.strip(), value.strip()


def _sizes(text: str) -> list[tuple[str, int]]:
    return [(name, _length(name, value)) for name, value in map(_pair, text.split(","))]


def _length(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value):
        raise argparse.ArgumentTypeError(f"the length of `{name}` is a whole number, got `{value}`")
    return int(value)


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"a seed is a whole number, got `{text}`")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got `{text}`")
    return int(text)


def _names(text: str) -> list[str]:
    names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        raise argparse.ArgumentTypeError("expected names of outputs, as in z,y")
    return names


def _tile(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})[x×]([0-9]{1,9})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a tile is ROWSxCOLUMNS, as in 128x256, got `{text}`")
    return int(match[1]), int(match[2])


def collected(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a dict. Raises UsageError for a name that is given twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found
