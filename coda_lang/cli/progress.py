"""A bar with the time left, for what takes more than a second on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import Self

PATIENCE, INTERVAL, BAR = 1.0, 0.1, 30
ENOUGH = 0.05  # of the whole, before the time left is worth telling


class Progress:
    """Called with what is done and what there is to do. Silent in a pipe; leaves nothing behind."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = time.monotonic()
        self.shown_at = 0.0
        self.updates = 0
        self.visible = False
        self.enabled = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.visible:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self.updates += 1
        if not self.enabled or done >= total or now - self.start < PATIENCE or now - self.shown_at < INTERVAL:
            return
        self.shown_at, self.visible = now, True
        width = shutil.get_terminal_size().columns
        seconds = now - self.start if self.updates > 1 else None  # the first part also prepares what the others use
        sys.stderr.write("\r\x1b[2K" + bar(self.title, done, total, seconds)[: max(1, width - 1)])
        sys.stderr.flush()


def bar(title: str, done: int, total: int, seconds: float | None) -> str:
    """`title ━━━━────  40 %  12 s left`; without the seconds that were spent, or early on, `…` for the time left."""
    part = done / total if total else 1.0
    full = int(BAR * part)
    left = "…" if seconds is None or part < ENOUGH else f"{_time(seconds * (1 - part) / part)} left"
    return f"{title} {'━' * full}{'─' * (BAR - full)} {part:4.0%}  {left}"


def _time(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class Steps:
    """A bar for each step of something, in turn. Called with the step's name, what is done and what there is to do."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def __call__(self, title: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.title != title:
            self.__exit__(None, None, None)
            self._bar = Progress(title)
        self._bar(done, total)
