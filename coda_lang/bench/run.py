"""One call of a kernel timed beside what else does its work, interleaved in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coda_lang import arrays
from coda_lang.api import Program
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.planned import Planned
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.bench.peers import PEERS, AbsentError, Options, Task, find
from coda_lang.bench.rows import Row
from coda_lang.binding import Binding
from coda_lang.call import Caller
from coda_lang.cost import cost, roofline
from coda_lang.data import DEFAULT_TILE
from coda_lang.ir.program import Kernel
from coda_lang.measure.agree import combine
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.series import ROUNDS, Interleaved, medians, ratio_interval, rotated
from coda_lang.measure.workload import Workload, drawn_on_device

OURS = "coda_lang"
DEFAULT = "coda_lang, untuned"
AGREEMENT = 1e-2  # relative to the norm: peers round the product to 16 bits before the epilogue
AGREEMENT_F8 = 5e-2  # that moves one in eight values to the next number of 8 bits, up to an eighth away

Progress = Callable[[str, int, int], None]


class WrongError(Exception):
    """Two that were to do the same work did not."""


def bench(
    program: Program,
    *,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    inputs: Collection[str] = (),
    outputs: Collection[str] | None = None,
    config: Config | str | None = None,
    others: Sequence[Config | str] = (),
    peers: Sequence[str] = PEERS,
    rounds: int = ROUNDS,
    options: Options | None = None,
    seed: int = 0,
    sustained: bool = False,
    progress: Progress | None = None,
) -> Row:
    """Time a call on random arguments on device 0 beside its peers.

    Args:
        sizes, dtypes, inputs, outputs, seed: of the call, as in `tuning.tune`.
        config: a schedule in place of the one that an ordinary call gets.
        others: schedules that are timed too; the samples have them by their text.
        sustained: time each for 50 ms after 100 ms of its own, in place of short series of a rested card.
        peers: of PEERS; those that cannot take part are absent from the row with the reason.

    Raises:
        ArgumentError, BackendError: as a call; no usable GPU.
        WrongError: outputs disagree with a peer's.
    """
    device.get(0)
    library = _library()
    arguments = drawn_on_device(program.ir, library, seed=seed, sizes=sizes, dtypes=dtypes, optional=inputs)
    work = Workload(Caller(program.ir), arguments, outputs)
    stopwatch = GpuStopwatch(work.device, work.library)
    timed = Interleaved.sustained(stopwatch) if sustained else Interleaved(stopwatch)
    runs = _ours(work, config, others)
    checked: list[str] = []
    absent: dict[str, str] = {}
    notes: dict[str, str] = {}
    total = len(runs) + len(peers)

    def tell(what: str, done: int) -> None:
        if progress is not None:
            progress(what, done, total)

    first: dict[str, Any] = {}
    for i, (name, plans) in enumerate(runs.items()):
        tell("compiling", i)
        results = work.once(plans[0], stopwatch)
        first = first or work.copied(results)
        timed.add(name, rotated(plans))
    for i, name in enumerate(peers, start=len(runs)):
        tell("preparing", i)
        try:
            peer = find(name, work.binding, work.library, options)
            tasks = [peer.prepare(_arguments(work, s.call.tensors, arguments)) for s in work.sets]
            work.restore()
            checked += [f"{name}: {o}" for o in _check(work.binding, first, name, tasks[0])]
            timed.add(name, rotated([t.run for t in tasks]))
            if peer.note is not None:
                notes[name] = peer.note
        except AbsentError as reason:
            absent[name] = str(reason)
        except WrongError:
            raise
        except Exception as error:  # what other libraries raise is not ours to know
            absent[name] = f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    names = [*runs, *(p for p in peers if p not in absent)]
    done = 0

    def one() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("timing", done, rounds * len(names))

    work.restore()
    samples = timed.run(names, rounds, one)
    return _row(program, work, runs, samples, checked, absent, notes)


def _library() -> str:
    """torch where it sees a GPU: most peers take its tensors; else CuPy."""
    try:
        import torch
    except ImportError:
        return "cupy"
    return "torch" if torch.cuda.is_available() else "cupy"


def _ours(work: Workload, config: Config | str | None, others: Sequence[Config | str]) -> dict[str, list[Planned]]:
    """Plans by name: what a call gets, what it would get untuned, and further schedules."""
    gpu = GpuProgram(work.caller)
    plans = {OURS: [gpu.plan(s.call, config) for s in work.sets]}
    if work.kernel.product is None:
        return plans
    known = {plans[OURS][0].config}
    untuned = gpu.untuned(work.first)
    for name, other in [(DEFAULT, untuned), *((None, o) for o in others)]:
        chosen = Config.parse(other) if isinstance(other, str) else other
        if chosen not in known:
            known.add(chosen)
            plans[name or str(chosen)] = [gpu.plan(s.call, chosen) for s in work.sets]
    return plans


def _arguments(work: Workload, tensors: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A set's arguments as the peers take them."""
    return {**given, **{n: v.owner for n, v in tensors.items()}}


# -- agreement ---------------------------------------------------------------------------------------------------------


def _check(binding: Binding, ours: Mapping[str, Any], peer: str, task: Task) -> list[str]:
    """Run a peer once, and compare what it shares with the kernel. Raises WrongError; returns what was compared."""
    theirs = task.outputs(task.run())
    compared = []
    for name, x in theirs.items():
        error = _error(binding, ours, name, x)
        if error is None:
            continue
        narrow = binding.dtype(binding.kernel.target(name)).bits == 8
        if not error < (AGREEMENT_F8 if narrow else AGREEMENT):
            raise WrongError(f"{binding.kernel.name}: `{name}` differs from {peer}'s: relative error {error:.3g}")
        compared.append(name)
    return compared


def _error(binding: Binding, ours: Mapping[str, Any], name: str, theirs: Any) -> float | None:
    """‖ours − theirs‖ / ‖theirs‖, partials combined; None where that takes outputs that are not there."""
    kernel = binding.kernel
    if hasattr(ours[name], "data_ptr") and not any(d.tiled for d in kernel.target(name).dims):
        x, y = ours[name].float(), theirs.float()  # where they lie
        return float(((x - y).norm() / y.norm()).item())
    types = {n: binding.dtype(kernel.target(n)).name for n in ours}
    combined = combine(kernel, name, {n: arrays.to_numpy(arrays.view(x, n, types[n]), n) for n, x in ours.items()})
    if combined is None:
        return None
    other = arrays.to_numpy(arrays.view(theirs, name, types[name]), name).astype(np.float64).reshape(combined.shape)
    return float(np.linalg.norm(combined - other) / np.linalg.norm(other))


# -- the row -----------------------------------------------------------------------------------------------------------


def _row(
    program: Program,
    work: Workload,
    runs: Mapping[str, Sequence[Planned]],
    samples: dict[str, list[float]],
    checked: list[str],
    absent: dict[str, str],
    notes: dict[str, str],
) -> Row:
    kernel, binding, times = work.kernel, work.binding, medians(samples)
    plan = runs[OURS][0]
    default = runs.get(DEFAULT, runs[OURS])[0]
    if DEFAULT not in times:
        times[DEFAULT] = times[OURS]
    dims = (kernel.rows, kernel.cols, kernel.product.contracted if kernel.product is not None else None)
    m, n, k = (None if d is None else binding.length(d) for d in dims)
    bits = 16 if kernel.product is None else binding.dtype(kernel.param(kernel.product.a)).bits
    work_ = cost(binding, plan.tile or DEFAULT_TILE)
    interval = None
    if "cublas" in samples:
        interval = [round(x, 4) for x in ratio_interval(samples[OURS], samples["cublas"])[1:]]
    return Row(
        program=Path(program.ir.span.source.path).stem,
        kernel=kernel.name,
        m=m,
        n=n,
        k=k,
        dtype=_dtype(kernel, binding),
        ours_ms=times[OURS],
        cublas_ms=times.get("cublas"),
        torch_compile_ms=times.get("torch.compile"),
        quack_ms=times.get("quack"),
        liger_ms=times.get("liger"),
        config=None if plan.config is None else str(plan.config),
        samples={name: [round(x, 6) for x in xs] for name, xs in samples.items()},
        default_ms=times[DEFAULT],
        default_config=None if default.config is None else str(default.config),
        interval=interval,
        tflops=work_.flops / times[OURS] / 1e9 if work_.flops else None,
        least_ms=max(roofline(work_, bits)) * 1e3,
        outputs=[o.name for o in kernel.outputs],
        inputs=[p.name for p in kernel.params],
        checked=checked,
        absent=absent,
        notes=notes,
    )


def _dtype(kernel: Kernel, binding: Binding) -> str:
    """Of the operands, or of the first input."""
    first = kernel.product.a if kernel.product is not None else next(p.name for p in kernel.params if not p.host)
    return binding.dtype(kernel.param(first)).name
