"""Compiling several kernels at once.

NVRTC runs the compiles of one process one after the other (two threads took twice as long as one), so each worker
is a process. They are started as plain programs, not by `multiprocessing`: a user's script needs no ``__main__``
guard, and nothing of the parent's CUDA state is inherited.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from coda_lang.backend_cutlass.abi import ARCHITECTURE, Emitted
from coda_lang.backend_cutlass.build import Cubin, compile_kernel
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.errors import BackendError
from coda_lang.source import Source

Outcome = Cubin | BackendError


def compile_many(
    kernels: Sequence[Emitted],
    arch: str = ARCHITECTURE,
    *,
    workers: int | None = None,
    origin: Source | None = None,
    done: Callable[[int, Outcome], None] | None = None,
    cache: Cache | None = None,
) -> list[Outcome]:
    """Compiles kernels in `workers` processes (one for each usable core unless given), each through the cache.

    The result has one entry for each kernel, in order: the cubin, or the error that `compile_kernel` raised. `done`
    is told each outcome with its index as it comes, from another thread. A worker that dies costs only its kernel.
    """
    root = (Cache() if cache is None else cache).root
    count = min(len(kernels), workers or len(os.sched_getaffinity(0)))
    outcomes: list[Outcome | None] = [None] * len(kernels)
    jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(kernels)):
        jobs.put(index)

    def serve() -> None:
        worker: _Worker | None = None
        try:
            while True:
                try:
                    index = jobs.get_nowait()
                except queue.Empty:
                    return
                worker = worker or _Worker()
                outcome = worker.compile(kernels[index], arch, origin, root)
                if worker.dead:
                    worker = None
                outcomes[index] = outcome
                if done is not None:
                    done(index, outcome)
        finally:
            if worker is not None:
                worker.close()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [o if o is not None else BackendError("the compile was not run") for o in outcomes]


class _Worker:
    """One process of this module, which answers pickled requests in turn until its input ends."""

    def __init__(self) -> None:
        # The child finds this package and the CUDA packages where the parent does.
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import answer; answer()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.dead = False

    def compile(self, emitted: Emitted, arch: str, origin: Source | None, root: Path) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, (emitted, arch, origin, root))
            outcome = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.dead = True
            code = self._process.wait()
            return BackendError(
                f"the compiler process for `{emitted.entry}` ended with status {code}",
                "it may have run out of memory: use fewer workers",
            )
        if isinstance(outcome, Cubin):
            return outcome
        return BackendError(*outcome)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def answer() -> None:
    """The worker's side: one outcome for each request."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says what was interrupted
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not get between the replies
    while True:
        try:
            emitted, arch, origin, root = pickle.load(requests)
        except EOFError:
            return
        try:
            _send(replies, compile_kernel(emitted, arch, origin=origin, cache=Cache(root)))
        except BackendError as error:
            _send(replies, (error.message, error.help))


def _send(stream: IO[bytes], message: object) -> None:
    pickle.dump(message, stream)
    stream.flush()
