"""`coda-run FILE [KERNEL]`: run a kernel on given and on random data, and show what came out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coda_lang import api
from coda_lang import binding as bindings
from coda_lang.call import specialise
from coda_lang.cli import arrays, backend, terminal
from coda_lang.cli.arguments import UsageError, collected
from coda_lang.cli.comparison import comparison_table
from coda_lang.cli.programs import choose, load
from coda_lang.cli.progress import Progress
from coda_lang.cli.summary import Summary, json_number, outputs_table, summarise
from coda_lang.data import DEFAULT_TILE, Drawn, draw
from coda_lang.errors import did_you_mean
from coda_lang.ir.numerics import STORAGE
from coda_lang.ir.program import Param
from coda_lang.ir.types import DTYPES, DType

RANDOM = "random"


def run(options: argparse.Namespace) -> int:
    module = load(options.file)
    terminal.diagnostics(module.warnings)
    program = api.program(choose(module, options.kernel))
    how = backend.Options(
        options.backend,
        options.tile,
        options.outputs,
        options.exact,
        options.check_domains,
        options.config,
        options.compare,
    )
    backend.choose(program, how)  # before data are drawn: a call that cannot run says so at once
    drawn = _arguments(program, options, options.tile or DEFAULT_TILE)
    with Progress(f"running {program.name}") as progress:
        ran = backend.run(program, drawn.arguments, how, progress)
    files = arrays.save(options.out, ran.outputs) if options.out is not None else {}
    summaries = [summarise(name, x) for name, x in ran.outputs.items()]
    if options.json:
        terminal.print_json(_as_json(program, options, how, drawn, ran, summaries, files))
    else:
        _show(program, options, drawn, ran, summaries, files)
    return 1 if any(line.wrong for line in ran.compared) else 0


# -- arguments ---------------------------------------------------------------------------------------------------------


def _arguments(program: backend.Runnable, options: argparse.Namespace, tile: tuple[int, int]) -> Drawn:
    """What the options give, and random data for the rest."""
    sizes = collected("--dim", [pair for pairs in options.dim for pair in pairs])
    dtypes = collected("--dtype", options.dtype)
    inputs = collected("--input", options.input)
    scalars = collected("--scalar", options.scalar)
    params = {p.name: p for p in program.ir.params}
    for option, names in (("--input", inputs), ("--scalar", scalars), ("--dim", sizes)):
        for name in names:
            _known_name(program, option, name)
    given: dict[str, Any] = {name: _scalar(program, params[name], text) for name, text in scalars.items()}
    given |= _from_files(program, inputs, dtypes, options.cast)
    drawn_optional = [name for name, text in inputs.items() if text == RANDOM]
    with Progress("drawing data") as progress:
        drawn = draw(
            program.ir,
            seed=options.seed,
            sizes=sizes,
            dtypes=dtypes,
            given=given,
            optional=drawn_optional,
            tile=tile,
            progress=progress,
        )
    if any(params[n].dims for n, text in inputs.items() if text != RANDOM):
        drawn = _without_guesses(program, drawn, sizes, options.outputs)
    return drawn


def _without_guesses(
    program: backend.Runnable, drawn: Drawn, sizes: Mapping[str, int], outputs: list[str] | None
) -> Drawn:
    """Beside arrays from files, a length that neither they nor an option fix is no small one that would do.

    Raises UsageError for one that the program needs: its results would be wrong, and look right.
    """
    guessed = [n for n in program.ir.axes if n in drawn.arguments and n not in sizes]
    passed = frozenset(drawn.arguments) - set(program.ir.axes)
    asked = bindings.asked_outputs(program.ir, outputs)
    needed = bindings.axes_needed(specialise(program.ir, passed, asked), passed)
    for name in guessed:
        if name in needed:
            split = next((s for s in program.ir.splits if name in (s.axis, s.outer.axis, s.inner.axis)), None)
            hint = f" ({split.axis} = {split.outer} * {split.inner})" if split is not None else ""
            raise UsageError(f"no file fixes axis {name} of {program.name}{hint}", f"write --dim {name}=…")
    arguments = {n: x for n, x in drawn.arguments.items() if n not in guessed}
    return replace(drawn, arguments=arguments, sizes={n: x for n, x in drawn.sizes.items() if n not in guessed})


def _known_name(program: backend.Runnable, option: str, name: str) -> None:
    """Raises UsageError for a name that the kernel lacks, or that another option gives."""
    params = {p.name: p for p in program.ir.params}
    right = "--dim" if name in program.ir.axes else None
    if name in params:
        right = "--input" if params[name].dims else "--scalar"
        if option == "--input" and not params[name].dims:
            return  # a scalar may come from a file, or be drawn
    if right == option:
        return
    if right is not None:
        kind = {"--dim": "an axis", "--input": "an array", "--scalar": "a scalar"}[right]
        raise UsageError(f"`{name}` is {kind} of {program.name}", f"write {right} {name}=…")
    what, known = ("axis", program.ir.axes) if option == "--dim" else ("input", tuple(params))
    help = did_you_mean(name, known) or f"{program.name} has {', '.join(known) or 'none'}"
    raise UsageError(f"{program.name} has no {what} `{name}`", help)


def _scalar(program: backend.Runnable, p: Param, text: str) -> float | int:
    assert isinstance(p.dtype, DType)
    try:
        return int(text) if p.dtype.kind in ("int", "bool") else float(text)
    except ValueError:
        kind = "a whole number" if p.dtype.kind == "int" else "a number"
        raise UsageError(f"`{p.name}` of {program.name} is {kind} ({p.dtype}), got `{text}`") from None


def _from_files(
    program: backend.Runnable, inputs: dict[str, str], dtypes: dict[str, str], cast: bool
) -> dict[str, Any]:
    """Arrays from files in the element types of the signature, a dtype parameter bound by the option or by a file."""
    params = {p.name: p for p in program.ir.params}
    names = {n: text for n, text in inputs.items() if text != RANDOM}
    allowed = {d.name: d.choices for d in program.ir.dtypes}
    bound = {n: DTYPES[t] for n, t in dtypes.items() if t in DTYPES}
    found = {}
    for name, text in names.items():
        p = params[name]
        x = arrays.native(arrays.load(name, text), arrays.choices(p, allowed))
        found[name] = x
        if isinstance(p.dtype, str):
            exact = next((c for c in allowed[p.dtype] if STORAGE[c.name] == x.dtype), None)
            if exact is not None:
                bound.setdefault(p.dtype, exact)
    result: dict[str, Any] = {}
    for name, x in found.items():
        p = params[name]
        dtype = p.dtype if isinstance(p.dtype, DType) else bound.get(p.dtype, allowed[p.dtype][0])
        free = isinstance(p.dtype, str) and p.dtype not in bound
        others = [t for t in arrays.choices(p, allowed) if t != dtype] if free else []
        fitted = arrays.fitted(p, x, dtype, names[name], cast, others)
        result[name] = fitted.item() if p.host and fitted.shape == () else fitted
    return result


# -- results -----------------------------------------------------------------------------------------------------------


def _show(
    program: backend.Runnable,
    options: argparse.Namespace,
    drawn: Drawn,
    ran: backend.Ran,
    summaries: list[Summary],
    files: dict[str, str],
) -> None:
    sizes = " ".join(f"{n}={length}" for n, length in drawn.sizes.items())
    types = " ".join(f"{n}={t}" for n, t in drawn.dtypes.items())
    print(f"{terminal.paint(program.name, 'bold')}  {'  '.join(part for part in (sizes, types) if part)}")
    random = f"; {', '.join(drawn.random)} random with seed {options.seed}" if drawn.random else ""
    if program.kind == "reduce" and any(d.tiled for p in program.ir.params if p.name in drawn.random for d in p.dims):
        random += f", partials of tiles of {ran.tile[0]}x{ran.tile[1]}"
    print(terminal.paint(f"{ran.note}, {_seconds(ran.seconds)}{random}", "dim"))
    for remark in ran.remarks:
        print(terminal.paint(remark, "dim"))
    print()
    print(comparison_table(ran.compared) if ran.compared else outputs_table(summaries))
    if files:
        print()
        print(f"wrote {', '.join(files.values())}")


def _seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _as_json(
    program: backend.Runnable,
    options: argparse.Namespace,
    how: backend.Options,
    drawn: Drawn,
    ran: backend.Ran,
    summaries: list[Summary],
    files: dict[str, str],
) -> dict[str, Any]:
    inputs = []
    for p in program.ir.params:
        if p.name in drawn.arguments:
            x = drawn.arguments[p.name]
            dtype = drawn.dtypes[p.dtype] if isinstance(p.dtype, str) else p.dtype.name
            source = RANDOM if p.name in drawn.random else "given"
            entry: dict[str, Any] = {"name": p.name, "dtype": dtype, "source": source}
            entry |= {"value": json_number(x)} if p.host else {"shape": list(getattr(x, "shape", ()))}
            inputs.append(entry)
    outputs = [s.as_json() | ({"file": files[s.name]} if s.name in files else {}) for s in summaries]
    compared = {"compare": [line.as_json() for line in ran.compared]} if ran.compared else {}
    return {
        "file": options.file,
        "kernel": program.name,
        "kind": program.kind,
        "backend": ran.backend,
        "tile": list(ran.tile),
        "exact": how.exact,
        "seed": options.seed,
        "sizes": drawn.sizes,
        "dtypes": drawn.dtypes,
        "seconds": round(ran.seconds, 6),
        "inputs": inputs,
        "outputs": outputs,
        **(ran.facts or {}),
        **compared,
    }
