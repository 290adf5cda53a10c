"""The process that NVRTC runs in: a pickled request on standard input, a pickled answer on standard output.

While NVRTC compiles, its own handlers of SIGINT and SIGTERM replace those of the process, and they end it. So it
has one to itself: a script, for a quick start, that imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def compile_unit(library: str, builtins: str, unit: str, source: str, options: list[str]) -> tuple[int, bytes, bytes]:
    """NVRTC's status, its log and the cubin (empty if the status says so)."""
    ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), unit.encode(), 0, None, None)
    if status:
        return status, b"", b""
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    failed, log = _fetch(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    cubin = b""
    if not status and not failed:
        status, cubin = _fetch(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    return status or failed, log, cubin


def _fetch(program: ctypes.c_void_p, size_of: Any, get: Any) -> tuple[int, bytes]:
    size = ctypes.c_size_t()
    status = size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    status = status or get(program, buffer)
    return status, buffer.raw[: size.value]


def main() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the answer
    answers.write(pickle.dumps(compile_unit(*pickle.load(sys.stdin.buffer))))
    answers.close()


if __name__ == "__main__":
    main()
