"""What a call costs the host: microseconds of Python and driver, with a device that keeps up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from coda_lang.api import Program
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.workload import Workload, drawn_on_device

BATCH, BATCHES = 200, 7  # fewer calls than a stream queues; the least of the batches


def microseconds(call: Callable[[], object], wait: Callable[[], None]) -> float:
    """Of the host for one call; waiting for the device is left out."""
    call()
    least = float("inf")
    for _ in range(BATCHES):
        wait()
        start = time.perf_counter()
        for _ in range(BATCH):
            call()
        least = min(least, time.perf_counter() - start)
    wait()
    return least / BATCH * 1e6


def ways(program: Program, library: str, sizes: dict[str, int], stopwatch: GpuStopwatch) -> Iterator[tuple[str, float]]:
    """Each way to call a program, with its microseconds."""
    work = Workload(program.caller, drawn_on_device(program.ir, library, sizes=sizes), None)
    given = {n: v.owner for n, v in work.first.tensors.items()}
    out = work.sets[0].outputs
    plan = program.plan(**given, out=out)
    wait = stopwatch.synchronize
    yield "eager call", microseconds(lambda: program(**given), wait)
    yield "eager call into given arrays", microseconds(lambda: program(**given, out=out), wait)
    yield "planned call", microseconds(plan, wait)

    def bound() -> None:
        plan.bind(given)
        plan()

    yield "plan bound to its arrays, and called", microseconds(bound, wait)
    if library == "torch":
        yield from _torch(plan, given, wait)


def _torch(plan: Callable[[], Any], given: dict[str, Any], wait: Callable[[], None]) -> Iterator[tuple[str, float]]:
    """A replayed graph, and what PyTorch's own calls take beside."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan()
    yield "graph replay", microseconds(graph.replay, wait)
    a, b = given["a"], given["b"]
    product = torch.mm(a, b.T)
    yield "torch.mm into a given array", microseconds(lambda: torch.mm(a, b.T, out=product), wait)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: torch.nn.functional.silu(a @ b.T), dynamic=False)
    yield "torch.compile of silu(a·bᵀ)", microseconds(lambda: compiled(a, b), wait)
