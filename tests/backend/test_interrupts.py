"""Signals while NVRTC compiles, and compiles that take long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coda_lang.backend_cutlass import build, nvrtc
from coda_lang.backend_cutlass.build import compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.errors import BackendError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.usefixtures("tools"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux"),
]

# Minutes of NVRTC's time.
LONG = "map long<M, N>(x: f32[M, N]) -> (y: f32[M, N]) {\n    y0 = x\n"
LONG += "".join(f"    y{i + 1} = exp(y{i}) * x\n" for i in range(400)) + "    y <- y400\n}\n"

SCRIPT = """
import signal, sys, time
import coda_lang as coda
if sys.argv[2] == "own":
    signal.signal(signal.SIGINT, lambda *a: print("handled", flush=True))
try:
    coda.load(sys.argv[1]).long.compile()
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
try:
    time.sleep(0.01)
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("again", flush=True)
"""


def children(pid: int) -> list[int]:
    """The processes that a process started, if it lives."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def compiling(pid: int) -> int:
    """Waits until NVRTC's process runs and has worked for a while; its number."""
    for _ in range(1200):
        for child in children(pid):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            if int(fields[11]) > 0.3 * os.sysconf("SC_CLK_TCK"):
                return child
        time.sleep(0.02)
    raise AssertionError("nothing is compiled")


def ends(pid: int) -> bool:
    for _ in range(250):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def long(tmp_path: Path) -> Path:
    path = tmp_path / "long.coda"
    path.write_text(LONG)
    return path


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    made: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        environment = os.environ | {"CODA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        made.append(
            subprocess.Popen(
                [sys.executable, *command], stdout=pipe, stderr=pipe, text=True, env=environment, process_group=0
            )
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("to", ["process", "group"])
def test_an_interrupt_ends_the_compile_and_no_more(started: Any, long: Path, to: str) -> None:
    process = started("-c", SCRIPT, str(long), "python's")
    compiler = compiling(process.pid)
    (os.kill if to == "process" else os.killpg)(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "interrupted True\nagain\n"), error
    assert ends(compiler)


def test_the_command_line_says_that_it_was_interrupted(started: Any, long: Path) -> None:
    process = started("-m", "coda_lang.cli", "cubin", str(long))
    compiler = compiling(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "error: interrupted\n"
    assert ends(compiler)


def test_a_programs_own_handler_is_called_and_the_compile_goes_on(started: Any, long: Path) -> None:
    process = started("-c", SCRIPT, str(long), "own")
    compiler = compiling(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "handled\n"
    time.sleep(0.2)
    assert process.poll() is None
    assert children(process.pid) == [compiler]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_compiler_ends_with_the_program(started: Any, long: Path, number: int) -> None:
    process = started("-c", SCRIPT, str(long), "python's")
    compiler = compiling(process.pid)
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert ends(compiler)


def test_a_compiler_that_dies_is_an_error(emit: Any, store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BackendError, match="NVRTC's process ended with status 1"):
        compile_kernel(emit(), cache=store)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BackendError, match=r"the compiler's process cannot be started: .*/nowhere/python"):
        compile_kernel(emit(), cache=store)


def test_a_long_compile_is_told_of(emit: Any, store: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The intervals double; the answer arrives whole."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nsleep 0.5\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(nvrtc, "PATIENCE", 0.1)
    said: list[str] = []
    assert build.compile_kernel(emit(), cache=store, progress=said.append).data
    assert said[:4] == ["compiling ones for sm_90a", *(f"still compiling ones after {s} s" for s in (0.1, 0.2, 0.4))]


def test_a_usual_compile_is_not(emit: Any, store: Cache) -> None:
    said: list[str] = []
    compile_kernel(emit(), cache=store, progress=said.append)
    assert said == ["compiling ones for sm_90a"]
