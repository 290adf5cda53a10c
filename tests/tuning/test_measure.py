"""Timing, argument sets and the comparison of outputs, on a GPU that stands in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from standing_gpu import PROGRAMS, FakeArray, FakeGpu

import coda_lang as coda
from coda_lang import arrays
from coda_lang.binding import Binding
from coda_lang.call import Caller
from coda_lang.data import draw
from coda_lang.errors import ArgumentError
from coda_lang.ir.passes import specialise
from coda_lang.measure.agree import combine, disagreement
from coda_lang.measure.gpu import GpuStopwatch
from coda_lang.measure.series import CALLS, MOST_CALLS, Interleaved, ratio_interval, rotated
from coda_lang.measure.workload import L2_BYTES, Workload, drawn_on_device

Arguments = Callable[..., dict[str, Any]]


# -- timing ------------------------------------------------------------------------------------------------------------


class Clock:
    """A stopwatch that times nothing but what the calls say they take."""

    def __init__(self) -> None:
        self.now, self.rested, self.series_of = 0.0, 0.0, []  # type: ignore[var-annotated]

    def series(self, call: Callable[[], object], count: int, queue_seconds: float) -> float:
        start = self.now
        for _ in range(count):
            call()
        self.series_of.append((count, queue_seconds))
        return (self.now - start) / count

    def queue_seconds(self, call: Callable[[], object], count: int) -> float:
        return 1e-5 * count

    def synchronize(self) -> None:
        pass

    def rest(self, seconds: float) -> None:
        self.rested += seconds


def test_a_series_may_have_fewer_calls() -> None:
    clock = Clock()

    def call() -> None:
        clock.now += 6.0

    timed = Interleaved(clock, series_ms=10.0, calls=1)
    timed.add("long", call)
    clock.series_of.clear()
    timed.run(["long"], rounds=3)
    assert [count for count, _ in clock.series_of] == [2] * 3


def test_series_are_long_enough_and_interleaved() -> None:
    clock = Clock()
    order: list[str] = []

    def takes(name: str, ms: float) -> Callable[[], None]:
        def call() -> None:
            clock.now += ms
            order.append(name)

        return call

    timed = Interleaved(clock, rest_ms=3.0, settle_ms=2.0, series_ms=4.0)
    for name, ms in (("long", 2.0), ("short", 0.05), ("tiny", 1e-4)):
        timed.add(name, takes(name, ms))
    order.clear()
    clock.series_of.clear()
    samples = timed.run(["long", "short", "tiny"], rounds=6)
    assert {n: len(x) for n, x in samples.items()} == {"long": 6, "short": 6, "tiny": 6}
    assert samples["short"] == pytest.approx([0.05] * 6)
    assert clock.rested == pytest.approx(6 * 3 * 3e-3)
    # Calls that the host queues in less than half their time settle for 2 ms and are timed for 4; others are few.
    settled, timed_calls = (
        {"long": 1, "short": 40, "tiny": MOST_CALLS},
        {"long": CALLS, "short": 80, "tiny": MOST_CALLS},
    )
    counts = {n: settled[n] + timed_calls[n] for n in settled}
    rounds = []
    while order:
        turn = []
        for _ in counts:
            name = order[0]
            assert order[: counts[name]] == [name] * counts[name]
            del order[: counts[name]]
            turn.append(name)
        assert sorted(turn) == sorted(counts), "in each round each variant once"
        rounds.append(tuple(turn))
    assert len(set(rounds)) > 1, "in random order"
    assert [count for count, _ in clock.series_of[::2]] == [settled[name] for turn in rounds for name in turn]
    assert [count for count, _ in clock.series_of[1::2]] == [timed_calls[name] for turn in rounds for name in turn]
    assert all(seconds > 1e-5 * min(count, MOST_CALLS) for count, seconds in clock.series_of[1::2])


def test_the_gpus_stopwatch(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms, fake.noise = lambda config: 0.25, 0.0
    plan = linear.plan(**arguments())
    watch = GpuStopwatch()
    assert watch.name == "Standing GPU"
    before = fake.clock
    assert watch.series(plan, 8, 0.01) == pytest.approx(0.25)
    assert fake.clock - before > 8 * 0.25 + 10 - 1e-6, "the spin came before the events"
    assert watch.queue_seconds(plan, 2) > 0
    long = fake.clock
    watch.spin(1e6)
    assert fake.clock - long <= 200, "never for long"


def test_rotated() -> None:
    seen: list[int] = []
    call = rotated([lambda i=i: seen.append(i) for i in range(3)])  # type: ignore[misc]
    for _ in range(7):
        call()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_the_interval_of_a_ratio() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(1.1, 0.01, 12), rng.normal(1.0, 0.01, 12)
    ratio, low, high = ratio_interval(list(x), list(y))
    assert low < ratio < high
    assert low < 1.1 < high
    assert high - low < 0.05
    assert ratio_interval([2.0] * 5, [1.0] * 5) == (2.0, 2.0, 2.0)


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_sets_exceed_the_cache_and_share_nothing(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    given = arguments(512, 256, 4096)
    made = Workload(Caller(linear.ir), given, None)
    used = (512 + 256) * 4096 * 2
    assert len(made.sets) == -(-2 * L2_BYTES // used)
    pointers = [v.pointer for one in made.sets for v in one.call.tensors.values()]
    assert len(set(pointers)) == len(pointers)
    assert made.sets[0].call.tensors["a"].owner is given["a"]
    for one in made.sets:
        assert np.array_equal(one.call.tensors["b"].owner.data, given["b"].data)
    outs = [one.outputs["d"].data.ctypes.data for one in made.sets]
    assert len(set(outs)) == len(outs)
    assert len(Workload(Caller(linear.ir), arguments(8, 8, 8), None).sets) == 32


def test_poison_is_nan_and_what_is_updated_comes_back(fake: FakeGpu) -> None:
    program = fake.serve(coda.load(PROGRAMS / "linear_dw.coda")["linear_dw_accumulate"])
    target = next(p.name for p in program.ir.params if p.inout)
    half = np.dtype(ml_dtypes.bfloat16)
    given = {"a": fake.hold(np.ones((16, 48), half)), "b": fake.hold(np.ones((16, 32), half))}
    given[target] = fake.hold(np.full((48, 32), 3, np.float32))
    made = Workload(Caller(program.ir), given, None)
    held = made.first.tensors[target].owner
    assert held is not given[target]
    held.data[...] = 7
    made.restore()
    assert (held.data == 3).all()
    quantize = coda.load(PROGRAMS / "quantize.coda")["quantize"]
    more = {"a": fake.hold(np.ones((16, 48), half)), "b": fake.hold(np.ones((32, 48), half))}
    other = Workload(Caller(quantize.ir), more | {"scale": fake.hold(np.ones((), np.float32))}, None)
    watch = GpuStopwatch()
    absmax = fake.hold(np.zeros((16, 1), np.float32))
    other.poison(watch.fill, {**other.sets[0].outputs, "absmax": absmax})
    assert np.isnan(other.sets[0].outputs["d"].data.astype(np.float32)).all()
    assert np.isnan(absmax.data).all()


def test_host_arrays_are_refused(fake: FakeGpu, linear: coda.Program) -> None:
    with pytest.raises(ArgumentError, match="CUDA arrays"):
        Workload(Caller(linear.ir), {n: np.ones((8, 8), np.float16) for n in "ab"}, None)


def test_drawn_arguments_lie_in_their_domains_at_any_size(fake: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_lang.measure.workload._BLOCK", 1 << 10)
    kernel = coda.load(PROGRAMS / "cross_entropy.coda")["cross_entropy"].ir
    made = drawn_on_device(kernel, "cupy", sizes={"M": 1500, "N": 50_000, "K": 32}, dtypes={"I": "i64"})
    a, target = made["a"].data, made["target"].data
    assert a.shape == (1500, 32)
    assert made["b"].data.shape == (50_000, 32)
    assert np.array_equal(a[:32], a[32:64]), "rows are repeated"
    assert len({row.tobytes() for row in a[:32]}) == 32
    assert target.max() > 40_000, "the domain is that of the whole"
    assert ((target >= 0) & (target < 50_000) | (target == -100)).all()
    assert 0.5 < float(np.std(a.astype(np.float32))) < 1.5
    call = Caller(kernel).call(made, None, None)
    assert call.binding.extents == {"M": 1500, "N": 50_000, "K": 32}


@pytest.mark.parametrize("file", ["rope", "residual_rms_bwd", "swiglu_bwd", "qk_norm", "reduces"])
def test_drawn_arguments_make_a_call(fake: FakeGpu, file: str) -> None:
    for program in coda.load(PROGRAMS / f"{file}.coda").values():
        made = drawn_on_device(program.ir, "cupy", sizes={"M": 24} if "M" in program.ir.axes else None)
        call = Caller(program.ir).call(made, None, None)
        assert call.device == 0
        assert any(isinstance(v.owner, FakeArray) for v in call.tensors.values())


# -- agreement ---------------------------------------------------------------------------------------------------------


def bound(file: str, name: str, **extents: int) -> Binding:
    ir = coda.load(PROGRAMS / f"{file}.coda")[name].ir
    needed = frozenset(p.name for p in ir.params if p.default is None)
    kernel = specialise(ir, needed, frozenset(o.name for o in ir.outputs))
    return Binding(kernel, extents, {}, {p.name: p.choices[0] for p in ir.dtypes})


@pytest.mark.parametrize(("file", "name"), [("residual_rms", "residual_rms"), ("cross_entropy", "cross_entropy"),
                                            ("quantize", "quantize"), ("residual_layernorm", "residual_layernorm"),
                                            ("residual_rms_bwd", "residual_rms_bwd")])  # fmt: skip
def test_runs_with_other_tiles_agree(file: str, name: str) -> None:
    program = coda.load(PROGRAMS / f"{file}.coda")[name]
    extents = {"M": 40, "N": 48, "K": 16}
    given = draw(program.ir, sizes=extents).arguments
    first, second = (program.interpret(**given, tile=tile) for tile in ((16, 16), (40, 32)))
    binding = bound(file, name, **extents)
    assert disagreement(binding, dict(first.items()), dict(second.items())) is None
    changed = {n: x.copy() for n, x in second.items()}
    for output in changed:
        wrong = {**changed, output: changed[output].copy()}
        wrong[output].reshape(-1)[3 % wrong[output].size] = 300
        found = disagreement(binding, dict(first.items()), wrong)
        assert found is not None, output
        assert found.startswith(f"`{output}`") or output in ("count", "mean", "m2")
        poisoned = {**changed, output: np.full_like(changed[output], np.nan)}
        assert disagreement(binding, dict(first.items()), poisoned) is not None


def test_a_unit_in_the_last_place_is_no_disagreement() -> None:
    binding = bound("linear", "linear", M=4, N=4, K=4)
    x = np.linspace(1, 2, 16, dtype=np.float32).reshape(4, 4).astype(ml_dtypes.bfloat16)
    near = np.nextafter(x, ml_dtypes.bfloat16(9))
    assert disagreement(binding, {"d": x}, {"d": near}) is None
    assert disagreement(binding, {"d": x}, {"d": x}) is None
    far = x.copy()
    far[2, 1] += ml_dtypes.bfloat16(0.1)
    assert str(disagreement(binding, {"d": x}, {"d": far})).startswith(
        "`d` differs in 1 of 16 elements, first at [2, 1]"
    )
    holes = x.copy()
    holes[0, 0] = np.nan
    assert disagreement(binding, {"d": x}, {"d": holes}) is not None
    assert disagreement(binding, {"d": holes}, {"d": holes.copy()}) is None


JUMPS = """kernel jumps<M, N, K>(a: bf16[M, K], b: bf16[N, K]) -> (over: bool[M, N], sign: f32[M, N], d: bf16[M, N]) {
    h = a @ b.T
    over <- h > 0.0
    sign <- select(h > 0.0, 1.0, -1.0)
    d <- h
}"""


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_sum_in_another_order_may_jump(library: str) -> None:
    """In few elements; what is unwritten, or is a tile, is none of them. Parts of the arrays are compared in turn."""
    ir = coda.loads(JUMPS).jumps.ir
    m, n = 2100, 2048
    binding = Binding(ir, {"M": m, "N": n, "K": 64}, {}, {})
    h = np.random.default_rng(3).normal(size=(m, n)).astype(np.float32)
    right = {"over": h > 0, "sign": np.where(h > 0, 1, -1).astype(np.float32), "d": h.astype(ml_dtypes.bfloat16)}

    def checked(name: str, change: Callable[[Any], None]) -> str | None:
        wrong = right[name].copy()
        change(wrong)
        runs = ({name: right[name]}, {name: wrong})
        if library == "torch":
            runs = tuple({k: arrays.to_torch(v) for k, v in r.items()} for r in runs)  # type: ignore[assignment]
        return disagreement(binding, *runs)

    def few(x: Any) -> None:
        at = np.arange(40)
        x[at * 51, at * 50] = ~x[at * 51, at * 50] if x.dtype == bool else -x[at * 51, at * 50]

    def row(x: Any) -> None:
        x[-1, :40] = ~x[-1, :40] if x.dtype == bool else -x[-1, :40]

    def column(x: Any) -> None:
        x[:40, -1] = ~x[:40, -1] if x.dtype == bool else -x[:40, -1]

    def block(x: Any) -> None:
        at = np.arange(40)
        x[at, at] = ~x[at, at] if x.dtype == bool else -x[at, at]

    def tile(x: Any) -> None:
        x[-64:, :64] = ~x[-64:, :64] if x.dtype == bool else -x[-64:, :64]

    def hole(x: Any) -> None:
        x[-1, -1] = np.nan

    def beyond(x: Any) -> None:
        x[-1, -1] = np.inf

    for name in right:
        assert checked(name, few) is None
        for change in (row, column, block):
            assert str(checked(name, change)).startswith(f"`{name}` differs in 40 of")
        found = checked(name, tile)
        assert found is not None
        assert found.startswith(f"`{name}` differs in 4096 of {m * n} elements, first at [2036, 0]")
    for name in ("sign", "d"):
        for change in (hole, beyond):
            assert str(checked(name, change)).startswith(f"`{name}` differs in 1 of {m * n} elements, first at [2099,")


def test_partials_are_combined_as_the_whole() -> None:
    program = coda.load(PROGRAMS / "residual_layernorm.coda")["residual_layernorm"]
    given = draw(program.ir, sizes={"M": 6, "N": 80, "K": 8}).arguments
    tiles = program.interpret(**given, tile=(16, 32))
    whole = program.interpret(**given, tile=(16, 80))
    kernel = bound("residual_layernorm", "residual_layernorm", M=6, N=80, K=8).kernel
    for name in ("count", "mean", "m2"):
        combined = combine(kernel, name, dict(tiles.items()))
        np.testing.assert_allclose(combined, whole[name][:, 0].astype(np.float64), rtol=1e-5)
    part = {n: x for n, x in tiles.items() if n != "count"}
    narrow = specialise(kernel, frozenset(p.name for p in kernel.params), frozenset({"mean", "m2"}))
    assert combine(narrow, "m2", part) is None
