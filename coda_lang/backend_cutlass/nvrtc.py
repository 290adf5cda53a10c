"""NVRTC through ctypes: a translation unit in, a cubin and the compiler's log out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coda_lang.backend_cutlass.toolchain import INSTALL, Toolchain
from coda_lang.errors import BackendError

UNIT = "kernel.cu"  # the name of the translation unit in the log

_COMPILATION = 6  # NVRTC_ERROR_COMPILATION
_INVALID_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION


class CompileError(Exception):
    """The unit has errors; `log` is NVRTC's own text."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(log)


class Nvrtc:
    """One loaded NVRTC library. Compiles of several threads run one after the other: NVRTC holds a lock."""

    def __init__(self, library: Path, builtins: Path) -> None:
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

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        """The cubin of a unit, and the log (warnings and ptxas's report).

        Raises:
            CompileError: the unit has errors.
            BackendError: NVRTC itself failed, or refused an option.
        """
        lib = self._library
        program = ctypes.c_void_p()
        self._check(
            lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), UNIT.encode(), 0, None, None),
        )
        try:
            array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            status = lib.nvrtcCompileProgram(program, len(options), array)
            log = self._fetch(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog)
            text = log.rstrip(b"\0").decode(errors="replace")
            if status in (_COMPILATION, _INVALID_OPTION):
                raise CompileError(text)
            self._check(status)
            return self._fetch(program, lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN), text
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, size_of: Any, get: Any) -> bytes:
        size = ctypes.c_size_t()
        self._check(size_of(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(get(program, buffer))
        return buffer.raw[: size.value]

    def _check(self, status: int) -> None:
        if status:
            name = self._library.nvrtcGetErrorString(status).decode()
            raise BackendError(f"NVRTC failed: {name} ({status})", "run it again; if it stays, report the kernel")


@cache
def load(toolchain: Toolchain) -> Nvrtc:
    """The library of a toolchain, loaded once: 110 MB, so only when something has to be compiled."""
    return Nvrtc(toolchain.nvrtc, toolchain.builtins)
