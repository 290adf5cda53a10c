"""What the two benchmarks share: a results file that grows row by row, captured steps, times and peak memory."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coda_lang.environment import describe
from coda_lang.measure.series import Interleaved, Stopwatch, medians, ratio_interval

OURS, COMPILED, LIGER, EAGER = "coda_lang", "torch.compile", "liger", "pytorch"
COLUMNS = {OURS: "ours_ms", COMPILED: "torch_compile_ms", LIGER: "liger_ms", EAGER: "pytorch_ms"}


class Rows:
    """A results file: what it was measured on, and one row for each measurement, written as soon as it is made.

    Another call with the same file goes on where the last one ended.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        """`seconds` is how long this call may take. Raises SystemExit if the file is from another GPU or software."""
        self._path, self._end = path, time.monotonic() + seconds
        self.left = 0
        here = describe()
        self._data: dict[str, Any] = {**here, "rows": []}
        if path.exists():
            self._data = json.loads(path.read_text())
            for key in ("gpu", "driver", "versions"):
                if self._data.get(key) != here[key]:
                    raise SystemExit(f"{path} was measured with another {key}: choose another file")

    def due(self, key: dict[str, Any], seconds: float) -> bool:
        """Whether the row with these entries is missing, and there is time for it: it takes about `seconds`."""
        if any(key.items() <= row.items() for row in self._data["rows"]):
            return False
        if time.monotonic() + seconds > self._end:
            self.left += 1
            return False
        return True

    def add(self, row: dict[str, Any]) -> None:
        self._data["rows"].append(row)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._data, indent=1) + "\n")
        os.replace(part, self._path)

    def close(self) -> None:
        """Says whether another call is needed."""
        print(f"{self.left} rows are left: call again" if self.left else "all rows are there", flush=True)


class HostStopwatch:
    """Times of the host, where there is no GPU: they show that a benchmark runs, and no more."""

    def series(self, call: Callable[[], object], count: int, queue_seconds: float) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return 1e3 * (time.perf_counter() - start) / count

    def queue_seconds(self, call: Callable[[], object], count: int) -> float:
        return 0.0

    def synchronize(self) -> None:
        pass

    def rest(self, seconds: float) -> None:
        pass


def stopwatch(device: str) -> Stopwatch:
    if torch.device(device).type == "cpu":
        return HostStopwatch()
    from coda_lang.measure.gpu import GpuStopwatch

    return GpuStopwatch(library="torch")


def times(calls: dict[str, Callable[[], object]], device: str, rounds: int, rested: bool = False) -> dict[str, Any]:
    """The part of a row that is times: medians, ours relative to each other variant, and every sample.

    They are of steps that last, each after 100 ms of its own. With `rested`, an entry of that name has the same of
    steps that take 10 ms together, or of one, after 30 ms of rest: the card's power limit has hardly slowed those down.
    """
    watch = stopwatch(device)
    row = _timed(Interleaved.sustained(watch), calls, rounds)
    if rested:
        row["rested"] = _timed(Interleaved(watch, series_ms=10.0, calls=1), calls, rounds)
    return row


def _timed(watch: Interleaved, calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    for name, call in calls.items():
        watch.add(name, call)
    samples = watch.run(list(calls), rounds)
    median = medians(samples)
    row: dict[str, Any] = {COLUMNS.get(name, f"{name}_ms"): ms for name, ms in median.items()}
    ratios = {name: ratio_interval(samples[OURS], x) for name, x in samples.items() if name != OURS}
    row["ratio"] = {name: r[0] for name, r in ratios.items()}
    row["ratio_interval"] = {name: r[1:] for name, r in ratios.items()}
    return row | {"samples": samples}


def summary(row: dict[str, Any]) -> str:
    """One line: times, ours relative to each, and peak memory."""
    parts = [f"{OURS} {row['ours_ms']:.3f} ms"]
    for name, ratio in row["ratio"].items():
        rested = f", rested {row['rested']['ratio'][name]:.3f}" if "rested" in row else ""
        parts.append(f"{name} {row[COLUMNS.get(name, f'{name}_ms')]:.3f} ms (ours / it {ratio:.3f}{rested})")
    parts += [f"{name} missing: {reason}" for name, reason in row["missing"].items()]
    memory = [f"{name} {size / 2**30:.2f}" for name, size in row["peak_bytes"].items() if size is not None]
    return "; ".join(parts) + (f"; GiB at the peak: {', '.join(memory)}" if memory else "")


def peak_bytes(step: Callable[[], object], device: str) -> int | None:
    """The most that a step allocates beside what is there before it; its results are counted. None on a CPU."""
    if torch.device(device).type == "cpu":
        step()
        return None
    step()
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@dataclass(frozen=True)
class Replay:
    """A captured step. It keeps the step, whose tensors the graph reads where they were."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], list[Tensor]]

    def __call__(self) -> None:
        self.graph.replay()


def captured(
    step: Callable[[], list[Tensor]], restore: Callable[[], None], device: str
) -> tuple[Callable[[], object], list[Tensor], bool]:
    """A replay of the step as a CUDA graph, the tensors that it leaves, and True.

    The tensors hold NaN until the replay that this function makes, on restored inputs, has written them. Where a step
    cannot be captured, and on a CPU: the step, what it returns, and False.
    """
    graph = None if torch.device(device).type == "cpu" else torch.cuda.CUDAGraph()
    results = None if graph is None else _capture(graph, step)
    restore()
    if graph is None or results is None:
        return step, step(), False
    replay = Replay(graph, step)
    replay()
    return replay, results, True


def _capture(graph: torch.cuda.CUDAGraph, step: Callable[[], list[Tensor]]) -> list[Tensor] | None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    try:
        with torch.cuda.graph(graph):
            results = step()
    except RuntimeError as problem:
        print(f"not captured: {problem}".splitlines()[0], flush=True)
        return None
    with torch.no_grad():
        for t in results:
            t.fill_(torch.nan)
    return results


def relative_error(got: Tensor, exact: Tensor) -> float:
    """In the Frobenius norm; NaN counts as infinitely wrong."""
    error = ((got.detach().float() - exact).norm() / exact.norm()).item()
    return error if error == error else float("inf")


def clean(device: str) -> None:
    """Gives back what the last row held."""
    torch._dynamo.reset()
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
