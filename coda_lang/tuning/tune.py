"""Tuning: candidates compiled in parallel, held against the default's outputs, raced on a GPU, and the winner kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from coda_lang import arrays
from coda_lang.api import Program
from coda_lang.backend_cutlass import device
from coda_lang.backend_cutlass.build import Cubin
from coda_lang.backend_cutlass.config import Config
from coda_lang.backend_cutlass.emit import footprint
from coda_lang.backend_cutlass.launch import refuse_capture
from coda_lang.backend_cutlass.model import predict
from coda_lang.backend_cutlass.planned import Planned
from coda_lang.backend_cutlass.pool import compile_many
from coda_lang.backend_cutlass.problem import problem
from coda_lang.backend_cutlass.program import GpuProgram
from coda_lang.backend_cutlass.report import Report
from coda_lang.backend_cutlass.space import Rejected, ordered
from coda_lang.call import Call, Caller
from coda_lang.environment import describe
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.ir.program import Kernel
from coda_lang.measure.agree import disagreement
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.series import Interleaved, ratio_interval, rotated
from coda_lang.measure.workload import Workload, drawn_on_device
from coda_lang.tuning import keys, shortlist
from coda_lang.tuning.race import Standing, race
from coda_lang.tuning.store import Tuned, TunedStore

BUDGET = 24  # schedules that are compiled and timed, beside the default
_FIRST = 0.6  # of the budget goes to different shapes, the rest to the neighbours of the best
_LEADERS = 3  # whose neighbours are tried
_REST_MS = 10.0  # shorter than a benchmark's: there are many schedules

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, and how much there is


@dataclass(frozen=True)
class Tried:
    """A schedule that was compiled: the model's time in seconds, the measured one in milliseconds and relative to the
    default's, what the compiler said, and why it was dropped early, if it was.
    """

    config: Config
    predicted: float
    ms: float | None
    ratio: float | None
    report: Report | None
    dropped: str | None


@dataclass(frozen=True)
class Tuning:
    """What came out. `tried` has the fastest first, the default among them; `rejected` is what the space leaves out,
    `untried` how many of its schedules the budget did not reach. `interval` is the winner's ratio to the default with
    its 95 % interval.
    """

    program: str
    gpu: str
    shape: keys.Shape
    bucket: keys.Shape
    default: Config
    winner: Config
    interval: tuple[float, float, float]
    tried: tuple[Tried, ...]
    rejected: tuple[Rejected, ...]
    untried: int
    saved: Path | None
    seconds: float
    notes: tuple[str, ...] = ()


def tune(
    program: Program,
    arguments: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    inputs: Collection[str] = (),
    outputs: Collection[str] | None = None,
    budget: int = BUDGET,
    seed: int = 0,
    save: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Find the fastest schedule for calls like this one, and keep it for all calls of the same bucket.

    Args:
        arguments: a call's, on a GPU; arrays that it updates in place are not changed. Without them, random ones are
            made on device 0.
        sizes, dtypes, inputs, seed: of the random arguments; `inputs` are the optional ones that are passed.
        outputs: what calls will ask for; by default all but the optional ones.
        budget: how many schedules are compiled and timed, beside the default.
        save: keep the winner in the cache folder, where calls find it.
        workers: processes that compile; by default one for each core.

    Raises:
        ArgumentError: wrong arguments, or a program without a product.
        BackendError: no usable GPU, or the current stream is being captured into a graph.
    """
    start = time.perf_counter()
    if program.ir.product is None:
        raise ArgumentError(f"{program.name}: a {program.kind} has no schedule to tune")
    if arguments is None:
        library = _library()
        refuse_capture(arrays.library(library).stream(0))
        arguments = drawn_on_device(program.ir, library, seed=seed, sizes=sizes, dtypes=dtypes, optional=inputs)
    contest = _Contest(program, Workload(Caller(program.ir), arguments, outputs), workers, progress)
    tuning = contest.run(budget)
    saved: Path | None = None
    notes: tuple[str, ...] = ()
    if save:
        try:
            saved = _save(contest.workload.first, tuning, contest.gpu.form(contest.workload.first))
        except OSError as error:
            notes = (f"not saved: {error}",)
        program.gpu.forget()
    return Tuning(**{**vars(tuning), "saved": saved, "notes": notes, "seconds": time.perf_counter() - start})


def _library() -> str:
    """Who makes arrays: CuPy, or torch where that is what there is."""
    try:
        arrays.library("cupy")
    except BackendError:
        return "torch"
    return "cupy"


@dataclass
class _Contest:
    """One tuning under way."""

    program: Program
    workload: Workload
    workers: int | None
    progress: Progress | None
    plans: dict[Config, list[Planned]] = field(default_factory=dict)
    reports: dict[Config, Report] = field(default_factory=dict)
    dropped: dict[Config, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        call = self.workload.first
        device.get(self.workload.device)
        refuse_capture(arrays.current_stream(call.tensors.values(), self.workload.device))
        self.gpu = GpuProgram(Caller(self.program.ir))
        self.stopwatch = GpuStopwatch(self.workload.device, self.workload.library)
        self.interleaved = Interleaved(self.stopwatch, rest_ms=_REST_MS)
        self.default = self.gpu.untuned(call)
        direct = self.gpu.emit(call, self.default).direct
        self.asked = problem(call.binding, footprint(call.kernel, call.binding.dtypes, direct))

    def run(self, budget: int) -> Tuning:
        configs, rejected = ordered(self.asked)
        self._enter([self.default])
        if self.default in self.dropped:
            raise BackendError(f"{self.program.name}: the default schedule failed: {self.dropped[self.default]}")
        tried = shortlist.first([c for c in configs if c != self.default], ceil(budget * _FIRST))
        self._enter(tried)
        standings = last = self._race(list(self.plans))
        leaders = [c for c, s in standings.items() if s.dropped is None][:_LEADERS]
        more = shortlist.neighbours(leaders, configs, [*tried, self.default], budget - len(tried))
        self._enter(more)
        if any(c in self.plans for c in more):
            last = self._race([*leaders, *(c for c in more if c in self.plans)])
        return self._result(standings | last, last, rejected, len(configs))

    # -- the steps --

    def _enter(self, configs: Sequence[Config]) -> None:
        """Compile, load and check; what fails is dropped with the reason."""
        call = self.workload.first
        units = [self.gpu.emit(call, c) for c in configs]
        done = 0

        def told(index: int, outcome: object) -> None:
            nonlocal done
            done += 1
            self._tell("compiling", done, len(units))

        origin = self.program.ir.span.source
        outcomes = compile_many(units, workers=self.workers, origin=origin, done=told)
        for i, (config, outcome) in enumerate(zip(configs, outcomes, strict=True)):
            self._tell("checking", i, len(configs))
            reason = self._admit(config, outcome)
            if reason is not None:
                self.dropped[config] = reason

    def _admit(self, config: Config, outcome: Cubin | BackendError) -> str | None:
        if isinstance(outcome, BackendError):
            return f"does not compile: {outcome.message.splitlines()[0]}"
        self.reports[config] = outcome.report
        if outcome.report.warnings:
            return f"the compiler warns: {outcome.report.warnings[0]}"
        plans = [self.gpu.plan(one.call, config) for one in self.workload.sets]
        reason = self._check(config, plans[0])
        if reason is None:
            self.plans[config] = plans
            self.interleaved.add(str(config), rotated(plans))
        return reason

    def _check(self, config: Config, plan: Planned) -> str | None:
        """Run once on poisoned outputs, and compare with what the default leaves."""
        results = self.workload.once(plan, self.stopwatch)
        if config == self.default:
            self.reference = self.workload.copied(results)
            return None
        return disagreement(self.workload.binding, self.reference, results)

    def _race(self, configs: Sequence[Config]) -> dict[Config, Standing]:
        names = {str(c): c for c in [self.default, *configs]}
        done, total = 0, 0

        def measure(alive: Sequence[str], rounds: int) -> dict[str, list[float]]:
            nonlocal done, total
            done, total = 0, len(alive) * rounds

            def told() -> None:
                nonlocal done
                done += 1
                self._tell("timing", done, total)

            self.workload.restore()
            return self.interleaved.run(alive, rounds, told)

        found = race(list(names), str(self.default), measure)
        return {names[n]: s for n, s in found.items()}

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    # -- the result --

    def _result(
        self,
        standings: dict[Config, Standing],
        last: dict[Config, Standing],
        rejected: list[Rejected],
        members: int,
    ) -> Tuning:
        """The winner is the fastest of the last race, if its time differs from the default's by more than chance."""
        best = min((c for c, s in last.items() if s.dropped is None), key=lambda c: last[c].ratio)
        interval = ratio_interval(last[best].samples, last[self.default].samples)
        if interval[2] >= 1:
            best, interval = self.default, (1.0, 1.0, 1.0)
        tried = [self._tried(c, s) for c, s in standings.items()]
        # The winner of the last race first: ratios of different races may differ by a hair.
        tried.sort(key=lambda t: (t.config != best and best != self.default, t.dropped is not None, t.ratio))
        tried += [self._tried(c, None) for c in self.dropped]
        shape = self.asked.rows, self.asked.cols, self.asked.contracted
        return Tuning(
            program=self.workload.kernel.name,
            gpu=self.stopwatch.name,
            shape=shape,
            bucket=keys.bucket(shape),
            default=self.default,
            winner=best,
            interval=interval,
            tried=tuple(tried),
            rejected=tuple(rejected),
            untried=members - len(tried),
            saved=None,
            seconds=0.0,
        )

    def _tried(self, config: Config, standing: Standing | None) -> Tried:
        predicted, report = predict(config, self.asked).seconds, self.reports.get(config)
        if standing is None:
            return Tried(config, predicted, None, None, report, self.dropped[config])
        return Tried(config, predicted, standing.ms, standing.ratio, report, standing.dropped)


def _save(call: Call[Kernel], tuning: Tuning, form: str) -> Path:
    """Keep the winner with what was measured. Raises OSError."""
    about = describe()
    by_config = {t.config: t for t in tuning.tried}
    winner, default = by_config[tuning.winner], by_config[tuning.default]
    assert winner.ms is not None
    assert default.ms is not None
    kernel, binding = call.kernel, call.binding
    entry = Tuned(
        program=kernel.name,
        dtypes={n: t.name for n, t in binding.dtypes.items()},
        outputs=[o.name for o in kernel.outputs],
        inputs=[p.name for p in kernel.params],
        shape=list(tuning.shape),
        bucket=list(tuning.bucket),
        config=str(tuning.winner),
        ms=winner.ms,
        default=str(tuning.default),
        default_ms=default.ms,
        interval=list(tuning.interval),
        tried={str(t.config): t.ratio if t.ratio is not None else str(t.dropped) for t in tuning.tried},
        gpu=tuning.gpu,
        driver=about["driver"],
        date=about["date"],
        versions=about["versions"],
    )
    return TunedStore().put(keys.key(tuning.gpu, form, tuning.shape), entry)
