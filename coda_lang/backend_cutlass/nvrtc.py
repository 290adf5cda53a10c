"""NVRTC: a translation unit in, a cubin and the compiler's log out. It compiles in a process of its own."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from coda_lang.backend_cutlass import nvrtc_process
from coda_lang.backend_cutlass.toolchain import INSTALL, Toolchain
from coda_lang.errors import BackendError

UNIT = "kernel.cu"  # the name of the translation unit in the log
PATIENCE = 15  # seconds of a compile before it is told that it goes on

_COMPILATION = 6  # NVRTC_ERROR_COMPILATION
_INVALID_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION


class CompileError(Exception):
    """The unit has errors; `log` is NVRTC's own text."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(log)


class Nvrtc:
    """One NVRTC library."""

    def __init__(self, library: Path, builtins: Path) -> None:
        self._paths = str(library), str(builtins)
        try:
            # NVRTC looks its builtins up by soname, which the loader answers from what is already loaded.
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise BackendError(f"NVRTC cannot be loaded: {error}", f"reinstall: {INSTALL}") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def compile(
        self, source: str, options: Sequence[str], waiting: Callable[[int], None] | None = None
    ) -> tuple[bytes, str]:
        """The cubin of a unit, and the log (warnings and ptxas's report).

        `waiting` is told the seconds so far after `PATIENCE` seconds, twice as many, and so on. An interrupt ends the
        compile.

        Raises:
            CompileError: the unit has errors.
            BackendError: NVRTC itself failed, or refused an option.
        """
        status, log, cubin = self._ask((*self._paths, UNIT, source, list(options)), waiting)
        text = log.rstrip(b"\0").decode(errors="replace")
        if status in (_COMPILATION, _INVALID_OPTION):
            raise CompileError(text)
        self._check(status)
        return cubin, text

    def _ask(self, request: object, waiting: Callable[[int], None] | None) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-I", "-S", nvrtc_process.__file__]
        pipe = subprocess.PIPE
        try:
            # Its own session: a terminal's Ctrl-C is this process's to handle.
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise BackendError(f"the compiler's process cannot be started: {error}") from error
        with process:
            try:
                answer, errors = _communicate(process, pickle.dumps(request), waiting)
            except BaseException:
                process.kill()
                raise
        try:
            status, log, cubin = pickle.loads(answer)
        except (EOFError, pickle.UnpicklingError):
            said = errors.decode(errors="replace").strip().rpartition("\n")[2]
            text = f"NVRTC's process ended with status {process.returncode}" + (f": {said}" if said else "")
            raise BackendError(text, "it may have run out of memory") from None
        return status, log, cubin

    def _check(self, status: int) -> None:
        if status:
            name = self._library.nvrtcGetErrorString(status).decode()
            raise BackendError(f"NVRTC failed: {name} ({status})", "run it again; if it stays, report the kernel")


def _communicate(
    process: subprocess.Popen[bytes], request: bytes, waiting: Callable[[int], None] | None
) -> tuple[bytes, bytes]:
    """What the process answers. `waiting` is told of the time at doubling intervals."""
    sent: bytes | None = request
    past, until = 0, PATIENCE
    while True:
        try:
            return process.communicate(sent, timeout=until - past)
        except subprocess.TimeoutExpired:
            sent, past, until = None, until, 2 * until
            if waiting is not None:
                waiting(past)


@cache
def load(toolchain: Toolchain) -> Nvrtc:
    """The library of a toolchain, found once, when something has to be compiled."""
    return Nvrtc(toolchain.nvrtc, toolchain.builtins)
