"""The tuner on a GPU that stands in (standing_gpu.py): who wins, what is refused, what is kept, and who finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from standing_gpu import BEST, PROGRAMS, FakeGpu, favour

import coda_lang as coda
from coda_lang.backend_cutlass.config import Config
from coda_lang.errors import ArgumentError, BackendError
from coda_lang.tuning.store import TunedStore
from coda_lang.tuning.tune import Tuning, tune

Arguments = Callable[..., dict[str, Any]]


def tuned(program: coda.Program, arguments: dict[str, Any], **more: Any) -> Tuning:
    return tune(program, arguments, workers=1, **more)


def config_of(program: coda.Program, arguments: dict[str, Any], **more: Any) -> Config | None:
    """The schedule of an ordinary call in a process that starts anew."""
    fresh = coda.load(PROGRAMS / f"{program.name}.coda")[program.name]
    return fresh.plan(**arguments, **more).config


def test_the_fastest_wins_by_way_of_its_neighbours(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms = favour(BEST)
    found = tuned(linear, arguments(), budget=40)
    assert (found.winner.tile_m, found.winner.tile_n, found.winner.schedule) == (64, 64, "pingpong")
    assert (found.winner.cluster_m, found.winner.cluster_n) == (2, 1)
    assert found.interval[0] == pytest.approx(fake.ms(found.winner) / fake.ms(found.default), rel=0.01)
    assert found.interval[1] <= found.interval[0] <= found.interval[2] < 1
    assert len(found.tried) == 41
    assert len(set(fake.compiled)) == len(found.tried)
    ratios = [t.ratio for t in found.tried if t.dropped is None]
    assert ratios == sorted(ratios)
    assert any("behind the best" in str(t.dropped) for t in found.tried)
    assert found.untried > 0
    assert sum(r.count for r in found.rejected) > 0
    assert (found.program, found.gpu, found.shape) == ("linear", "Standing GPU", (200, 320, 64))


def test_ordinary_calls_of_the_bucket_use_the_winner(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms = favour(BEST)
    first = arguments()
    before = config_of(linear, first)
    found = tuned(linear, first, budget=16)
    assert before == found.default != found.winner
    assert config_of(linear, first) == found.winner
    assert linear.plan(**first).config == found.winner, "the process that tuned uses it too"
    assert config_of(linear, arguments(199, 304, 64)) == found.winner
    assert config_of(linear, arguments(300, 320, 64)) == found.default
    other = "64x64,pingpong,cluster=1x1,stages=4"
    assert config_of(linear, first, config=other) == Config.parse(other)
    assert config_of(linear, arguments(dtype="f16")) == found.default
    assert config_of(linear, {**first, "alpha": 2.0}) == found.default, "another form of the program"
    fake.poisoned = True  # the stand-in then computes what is launched
    out = linear(**first)
    a, b = (first[n].data.astype(np.float32) for n in "ab")
    assert np.array_equal(out.d.data.astype(np.float32), (a @ b.T).astype(out.d.data.dtype).astype(np.float32))


def test_partials_have_the_winners_tiles(fake: FakeGpu, arguments: Arguments) -> None:
    program = fake.serve(coda.load(PROGRAMS / "residual_rms.coda")["residual_rms"])
    fake.ms = favour(Config(64, 64, schedule="pingpong"))
    first = {**arguments(), "c": fake.hold(np.ones((200, 320), "bfloat16")), "w": fake.hold(np.ones(320, np.float32))}
    found = tuned(program, first, budget=16)
    assert (found.default.tile_n, found.winner.tile_n) == (32, 64)
    assert program.out_shapes(**first)["sq"].shape == (200, 5)
    assert program(**first).sq.data.shape == (200, 5)
    assert not [t for t in found.tried if "differs" in str(t.dropped)], "partials of other tiles are combined first"


def test_the_default_stays_where_nothing_is_faster(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms = lambda config: 0.1
    fake.noise = 0.01
    found = tuned(linear, arguments(), budget=8)
    assert found.winner == found.default
    assert found.interval == (1.0, 1.0, 1.0)
    assert config_of(linear, arguments()) == found.default


@pytest.mark.parametrize("fault", ["wrong", "idle"])
def test_a_wrong_schedule_never_wins(fake: FakeGpu, linear: coda.Program, arguments: Arguments, fault: str) -> None:
    fake.ms = favour(BEST)
    setattr(fake, fault, lambda config: (config.tile_m, config.tile_n) == (64, 64) and config != default)
    default = linear.plan(**arguments()).config
    found = tuned(linear, arguments(), budget=12)
    bad = [t for t in found.tried if "`d` differs in" in str(t.dropped)]
    assert bad
    assert all((t.config.tile_m, t.config.tile_n) == (64, 64) for t in bad)
    assert all(t.ms is None for t in bad)
    assert found.winner not in [t.config for t in bad]
    if fault == "wrong":
        assert "first at [199, 319]: 1000, not " in str(bad[0].dropped)


def test_what_does_not_compile_is_left_out(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.broken = lambda config: config.tile_m == 128
    fake.warned = lambda config: config.tile_n == 64
    found = tuned(linear, arguments(), budget=16)
    reasons = {str(t.dropped) for t in found.tried if t.ms is None}
    assert "does not compile: ptxas: fatal" in reasons
    assert any(r.startswith("the compiler warns: ptxas info: Potential Performance Loss") for r in reasons)


def test_what_is_updated_in_place_is_restored(fake: FakeGpu, arguments: Arguments) -> None:
    file = coda.load(PROGRAMS / "linear_dw.coda")
    program = fake.serve(file["linear_dw_accumulate"])
    given = arguments(48, 32, 16)  # a [M, K] and b [N, K]: here a.T @ b
    names = [p.name for p in program.ir.params]
    target = next(p.name for p in program.ir.params if p.inout)
    rng = np.random.default_rng(1)
    shapes = {"a": (16, 48), "b": (16, 32)}
    call = {n: fake.hold(rng.integers(-2, 3, s).astype(given["a"].data.dtype)) for n, s in shapes.items()}
    old = rng.integers(-8, 9, (48, 32)).astype(np.float32)
    call[target] = fake.hold(old)
    assert set(names) == set(call)
    found = tuned(program, call, budget=4)
    assert np.array_equal(call[target].data, old), "the caller's array is as it was"
    assert not [t for t in found.tried if "differs" in str(t.dropped)], "every check began with the same values"
    assert fake.computed > len(found.tried)


def test_during_a_capture_nothing_is_tuned_or_looked_up(
    fake: FakeGpu, linear: coda.Program, arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.ms = favour(BEST)
    found = tuned(linear, arguments(), budget=16)
    fresh = coda.load(PROGRAMS / "linear.coda")["linear"]
    fresh.plan(**arguments(), config=found.default)  # compiled before the capture
    fake.capturing = True
    with pytest.raises(BackendError, match="CUDA graph capture"):
        tune(linear, arguments(), budget=4)
    with pytest.raises(BackendError, match="CUDA graph capture"):
        tune(linear, sizes={"M": 64, "N": 64, "K": 64}, budget=4)
    asked: list[str] = []
    plain = TunedStore.get
    monkeypatch.setattr(TunedStore, "get", lambda self, key: asked.append(key) or plain(self, key))
    assert fresh.plan(**arguments()).config == found.default
    assert not asked
    fake.capturing = False
    assert fresh.plan(**arguments()).config == found.winner
    fake.capturing = True
    assert fresh.plan(**arguments()).config == found.winner, "known by now"
    assert len(asked) == 1


def test_the_lookup_is_made_once_for_a_bucket(
    fake: FakeGpu, linear: coda.Program, arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(TunedStore, "get", lambda self, key: asked.append(key))
    first, second = arguments(), arguments(199, 320, 64)
    for given in (first, first, second, second):
        linear(**given)
    assert len(asked) == 1
    plan = linear.plan(**first)
    fake.launches = 0
    for _ in range(3):
        plan()
    assert (len(asked), fake.launches) == (1, 3)


def test_the_switch(fake: FakeGpu, linear: coda.Program, arguments: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.ms = favour(BEST)
    found = tuned(linear, arguments(), budget=16)
    monkeypatch.setenv("CODA_TUNED", "0")
    assert config_of(linear, arguments()) == found.default


def test_a_damaged_or_unbuildable_entry_is_ignored(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms = favour(BEST)
    found = tuned(linear, arguments(), budget=16)
    assert found.saved is not None
    whole = found.saved.read_bytes()
    for damage in (whole[:-40], whole.replace(b"Standing", b"Lying ab"), b"", b"\xff\xfe", b"[]", b'{"check": 1}'):
        found.saved.write_bytes(damage)
        assert config_of(linear, arguments()) == found.default
        assert not found.saved.exists(), "a damaged entry is removed"
    store = TunedStore()
    entry_key = found.saved.name.removesuffix(".tuned")
    found.saved.write_bytes(whole)
    entry = store.get(entry_key)
    assert entry is not None
    for config in ("256x256,cooperative", "of the future", "128x256,stages=12"):
        store.put(entry_key, replace(entry, config=config))
        assert config_of(linear, arguments()) == found.default


def test_what_the_entry_says(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    fake.ms = favour(BEST)
    found = tuned(linear, arguments(), budget=16)
    (entry,) = TunedStore().show()
    kept = entry.value
    assert entry.path == found.saved
    assert (kept.program, kept.dtypes, kept.outputs, kept.gpu) == ("linear", {"T": "bf16"}, ["d"], "Standing GPU")
    assert kept.inputs == ["a", "b"]
    assert (kept.shape, kept.bucket) == ([200, 320, 64], [208, 320, 64])
    assert (kept.config, kept.default) == (str(found.winner), str(found.default))
    assert kept.ms < kept.default_ms
    assert kept.tried[kept.config] == pytest.approx(kept.ms / kept.default_ms, rel=0.02)
    assert set(kept.tried) == {str(t.config) for t in found.tried}
    assert "python" in kept.versions
    assert TunedStore().clear() == (1, entry.size)
    assert not TunedStore().show()


def test_random_arguments(fake: FakeGpu, linear: coda.Program) -> None:
    fake.ms = favour(BEST)
    found = tune(linear, sizes={"M": 300, "N": 264, "K": 40}, dtypes={"T": "f16"}, inputs=["c"], budget=6, workers=1)
    assert found.shape == (300, 264, 40)
    assert not [t for t in found.tried if t.ms is None]
    assert TunedStore().show()[0].value.inputs == ["a", "b", "c"]


def test_not_saved(fake: FakeGpu, linear: coda.Program, arguments: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(linear, arguments(), budget=2, save=False).saved is None
    assert not TunedStore().show()

    def refuse(self: TunedStore, key: str, entry: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(TunedStore, "put", refuse)
    found = tuned(linear, arguments(), budget=2)
    assert (found.saved, found.notes) == (None, ("not saved: read-only file system",))


def test_progress_is_told(fake: FakeGpu, linear: coda.Program, arguments: Arguments) -> None:
    told: list[tuple[str, int, int]] = []
    tuned(linear, arguments(), budget=4, progress=lambda *x: told.append(x))
    assert {what for what, _, _ in told} == {"compiling", "checking", "timing"}
    assert all(0 <= done <= total for _, done, total in told)


def test_what_cannot_be_tuned(fake: FakeGpu, linear: coda.Program) -> None:
    reduce = coda.load(PROGRAMS / "reduces.coda")["sum_partials"]
    with pytest.raises(ArgumentError, match="a reduce has no schedule to tune"):
        tune(reduce, sizes={"M": 4, "N": 4})
    with pytest.raises(ArgumentError, match="CUDA arrays"):
        tune(linear, {n: np.ones((8, 8), "bfloat16") for n in "ab"})
