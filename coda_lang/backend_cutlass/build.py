"""From generated CUDA to a cubin: the options, the cache in front of NVRTC, and what a failed compile says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from coda_lang.backend_cutlass import elf, fingerprint, nvrtc, report, toolchain
from coda_lang.backend_cutlass.abi import ARCHITECTURE, NVRTC_OPTIONS, Emitted
from coda_lang.backend_cutlass.cache import Cache, key_of
from coda_lang.backend_cutlass.files import write_atomically
from coda_lang.backend_cutlass.naming import of_entry
from coda_lang.backend_cutlass.report import Report
from coda_lang.backend_cutlass.toolchain import Toolchain
from coda_lang.errors import BackendError
from coda_lang.source import Source, Span

ARCHITECTURES = (ARCHITECTURE,)
SHOWN_ERRORS = 3

OPTIONS = (*NVRTC_OPTIONS, "--ptxas-options=-v")  # the second reports registers, stack and spills in the log


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: the ELF image, its entry function and what the compiler said about it."""

    data: bytes
    entry: str
    arch: str
    key: str  # of the cache entry
    report: Report


def compile_kernel(
    emitted: Emitted,
    arch: str = ARCHITECTURE,
    *,
    origin: Source | None = None,
    progress: Callable[[str], None] | None = None,
    cache: Cache | None = None,
) -> Cubin:
    """Compiles a generated kernel, or takes it from the cache. Needs no GPU.

    `origin` is the text that `emitted.lines` points into, for messages; `progress` is told each slow step when it
    starts, and that it goes on; `cache` is the default one unless given. An interrupt ends the compile.

    Raises:
        BackendError: unsupported architecture, missing toolchain, or the source does not compile (then the source
            and the log are kept in the cache folder, and the message maps the first errors to `origin`).
    """
    if arch not in ARCHITECTURES:
        raise BackendError(
            f"the architecture {arch!r} is not supported", f"supported: {', '.join(ARCHITECTURES)} (H100, H200, GH200)"
        )
    store = Cache() if cache is None else cache
    start = time.perf_counter()
    tools = toolchain.find()
    key = _key(emitted, arch, tools, store)
    known = _cached(store, key, emitted, start)
    if known is not None:
        return Cubin(known[0], emitted.entry, arch, key, known[1])

    def waiting(seconds: int) -> None:
        if progress is not None:
            progress(f"still compiling {of_entry(emitted.entry)} after {seconds} s")

    if progress is not None:
        progress(f"compiling {of_entry(emitted.entry)} for {arch}")
    compiler = nvrtc.load(tools)
    includes = [f"-I{folder}" for folder in tools.includes]
    try:
        raw, log = compiler.compile(emitted.source, (f"--gpu-architecture={arch}", *OPTIONS, *includes), waiting)
    except nvrtc.CompileError as failure:
        raise _failed(emitted, failure.log, origin, store, key) from None
    try:
        image = elf.shorten_names(raw)
    except elf.BadElfError:
        image = raw  # a layout of a newer compiler: larger, and as right
    made = report.read(
        image,
        emitted.entry,
        log,
        arch=arch,
        nvrtc=".".join(map(str, compiler.version)),
        shared_bytes=emitted.shared_bytes,
        seconds=time.perf_counter() - start,
    )
    try:
        store.put(key, made.to_json(), image)
    except OSError as error:
        made = replace(made, warnings=(*made.warnings, f"not cached: {error}"))
    return Cubin(image, emitted.entry, arch, key, made)


def is_cached(emitted: Emitted, arch: str = ARCHITECTURE, cache: Cache | None = None) -> bool:
    """Whether `compile_kernel` would find the kernel in the cache. Raises BackendError: the toolchain is missing."""
    store = Cache() if cache is None else cache
    return store.get(_key(emitted, arch, toolchain.find(), store)) is not None


def _key(emitted: Emitted, arch: str, tools: Toolchain, store: Cache) -> str:
    return key_of(arch, *OPTIONS, *digests(tools, store.memo), emitted.entry, emitted.source)


def digests(tools: Toolchain, memo: Path) -> tuple[str, str]:
    """The contents of this project's headers, and of the compiler with all others. Raises BackendError: unreadable."""
    try:
        ours = fingerprint.content_digest([tools.csrc])  # small: read each time, so that edits count at once
        return ours, toolchain_digest(tools, memo)
    except OSError as error:
        raise BackendError(f"a header cannot be read: {error}", f"reinstall: {toolchain.INSTALL}") from error


@cache
def toolchain_digest(tools: Toolchain, memo: Path) -> str:
    """The contents of the compiler and of the headers that are not this project's; read once in a process."""
    # A folder inside another one (CUDA's include/cccl) is read with it.
    cuda = [folder for folder in tools.cuda if not any(outer in folder.parents for outer in tools.cuda)]
    return fingerprint.content_digest((tools.cutlass, *cuda, tools.nvrtc, tools.builtins), memo)


def _cached(store: Cache, key: str, emitted: Emitted, start: float) -> tuple[bytes, Report] | None:
    found = store.get(key)
    if found is None:
        return None
    info, image = found
    try:
        known = Report.from_json(info)
    except (TypeError, KeyError):
        return None  # written by another version of the report
    seconds = time.perf_counter() - start
    shared = emitted.shared_bytes
    return image, replace(known, cached=True, compile_seconds=seconds, dynamic_shared_bytes=shared)


def _failed(emitted: Emitted, log: str, origin: Source | None, store: Cache, key: str) -> BackendError:
    lines = [f"the CUDA generated for `{emitted.entry}` does not compile:"]
    errors = parse_errors(log)
    for message, line in errors[:SHOWN_ERRORS]:
        lines.append(f"  {_place(emitted, line, origin)}{message}")
    if len(errors) > SHOWN_ERRORS:
        lines.append(f"  … and {len(errors) - SHOWN_ERRORS} more")
    if not errors:
        lines += [f"  {line}" for line in log.strip().splitlines()[-SHOWN_ERRORS:]]
    kept = store.failed / f"{emitted.entry}-{key[:16]}.cu"
    try:
        write_atomically(kept, emitted.source.encode())
        write_atomically(kept.with_suffix(".log"), log.encode())
        help = f"this is a fault of coda_lang, not of the program: please report it with {kept} (and .log)"
    except OSError as error:
        help = f"this is a fault of coda_lang, not of the program (its source could not be kept: {error})"
    return BackendError("\n".join(lines), help)


def parse_errors(log: str) -> list[tuple[str, int | None]]:
    """The errors of an NVRTC log, in order: the message, and the line of the unit that led to it if one is named.

    An error inside a header belongs to the innermost line of the unit that instantiated the template.
    """
    found: list[tuple[str, int | None]] = []
    pattern = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[^:]*)?: (?P<text>.*)$")
    unit = re.escape(nvrtc.UNIT)
    open_error = False
    for line in log.splitlines():
        match = pattern.match(line)
        if match:
            inside = match["file"] == nvrtc.UNIT
            where = "" if inside else f" ({match['file'].rsplit('/', 1)[-1]}:{match['line']})"
            found.append((match["text"] + where, int(match["line"]) if inside else None))
            open_error = True
        elif re.match(r"\s*ptxas\b.*\b(error|fatal)\s*:", line):
            found.append((line.strip(), None))
            open_error = False
        elif open_error and found[-1][1] is None:
            via = re.search(rf"at line (\d+) of {unit}", line)
            if via:
                found[-1] = (found[-1][0], int(via[1]))
    return found


def _place(emitted: Emitted, line: int | None, origin: Source | None) -> str:
    """Where in the .coda text a line of the unit comes from: the nearest mapped line at or above it."""
    if line is None:
        return ""
    above = [n for n in emitted.lines if n <= line]
    if origin is None or not above:
        return f"{nvrtc.UNIT}:{line}: "
    offset = emitted.lines[max(above)]
    return f"{Span(origin, offset, offset)}: ({nvrtc.UNIT}:{line}) "
