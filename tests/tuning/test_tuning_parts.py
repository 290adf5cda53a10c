"""The parts of the tuner: buckets and keys, the store, the race, the shortlist."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import coda_lang as coda
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.backend_cutlass.config import Config, Footprint
from coda_lang.backend_cutlass.problem import Problem
from coda_lang.backend_cutlass.space import ordered
from coda_lang.ir.passes import specialise
from coda_lang.ir.program import Kernel
from coda_lang.ir.types import BF16, F16
from coda_lang.measure.described import described_call
from coda_lang.tuning import keys, shortlist
from coda_lang.tuning.race import FINALISTS, LAST_ROUNDS, ROUNDS, race
from coda_lang.tuning.store import Tuned, TunedStore

PROGRAMS = Path(__file__).parents[2] / "programs"
TUNED = Tuned(
    program="linear",
    dtypes={"T": "bf16"},
    outputs=["d"],
    inputs=["a", "b"],
    shape=[4000, 4096, 4096],
    bucket=[4096, 4096, 4096],
    config="128x256,cluster=2x1,cooperative",
    ms=0.17,
    default="128x128,cluster=2x1,pingpong,stages=6",
    default_ms=0.18,
    interval=[0.944, 0.94, 0.95],
    tried={"128x256,cluster=2x1,cooperative": 0.944},
    gpu="NVIDIA H200",
    driver=None,
    date="2026-11-30 10:00 UTC",
    versions={},
)


# -- buckets and keys --------------------------------------------------------------------------------------------------


def test_buckets() -> None:
    assert keys.bucket((1, 64, 65)) == (32, 64, 72)
    assert keys.bucket((4096, 3841, 3840)) == (4096, 4096, 3840)
    assert keys.bucket((4097, 32768, 131072)) == (4608, 32768, 131072)
    for extent in range(1, 5000):
        top, _, _ = keys.bucket((extent, 1, 1))
        assert top >= extent
        assert keys.bucket((top, 1, 1))[0] == top, "a bucket's own shape is in it"
        assert extent <= 32 or top < 1.13 * extent


def form(kernel: Kernel, dtype: object = BF16, passed: str = "a b", outputs: str = "d", direct: str = "") -> str:
    whole = specialise(kernel, frozenset(passed.split()), frozenset(outputs.split()))
    return keys.form(whole, {"T": dtype}, direct.split())  # type: ignore[dict-item]


def test_a_form_is_what_decides_the_code() -> None:
    kernel = coda.load(PROGRAMS / "linear.coda")["linear"].ir
    text = (PROGRAMS / "linear.coda").read_text()
    moved = coda.loads("// a comment\n\n" + text.replace('"d = alpha', '"another text: d = alpha'))["linear"].ir
    assert form(moved) == form(kernel), "comments, places and documentation do not count"
    others = [
        form(kernel, F16),
        form(kernel, passed="a b c"),
        form(kernel, passed="a b bias"),
        form(kernel, direct="d"),
        form(coda.loads(text.replace("a @ b.T", "a @ b.T * 2.0"))["linear"].ir),
        form(coda.load(PROGRAMS / "linear_dx.coda")["linear_dx"].ir),
    ]
    assert len({form(kernel), *others}) == len(others) + 1
    swiglu = coda.load(PROGRAMS / "rmsnorm_swiglu.coda")["rmsnorm_swiglu"].ir
    assert form(swiglu, passed="a b rstd", outputs="y") != form(swiglu, passed="a b rstd", outputs="z y")


def test_heads_that_are_cut_make_another_form() -> None:
    """The two have kernels of their own, though extents, types and alignment agree."""
    rope = coda.load(PROGRAMS / "rope.coda")["rope_position"]
    sizes = {"M": 8192, "K": 4096, "P": 64}
    calls = [described_call(rope.ir, sizes={**sizes, "H": h, "D": d}) for h, d in ((72, 64), (36, 128), (48, 96))]
    assert len({rope.gpu.shape(c) for c in calls}) == 1
    whole, also_whole, cut = (rope.gpu.form(c) for c in calls)
    assert whole == also_whole != cut


def test_a_key_has_the_gpu_the_form_the_toolchain_and_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = ["our headers", "the toolchain"]
    monkeypatch.setattr(keys.toolchain, "find", lambda: None)
    monkeypatch.setattr(keys.build, "digests", lambda found, memo: tuple(contents))
    first = keys.key("H200", "form", (4096, 4096, 4096))
    assert keys.key("H200", "form", (4000, 4090, 3900)) == first
    found = {first, keys.key("H100", "form", (4096, 4096, 4096)), keys.key("H200", "other", (4096, 4096, 4096))}
    found |= {keys.key("H200", "form", (4096, 4096, 2048)), keys.key("H200", "form", (2048, 4096, 4096))}
    for at in (0, 1):
        contents[at] += ", changed"
        found.add(keys.key("H200", "form", (4096, 4096, 4096)))
    monkeypatch.setattr(keys, "VERSION", "99")
    found.add(keys.key("H200", "form", (4096, 4096, 4096)))
    assert len(found) == 8


# -- the store ---------------------------------------------------------------------------------------------------------

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from pathlib import Path
from test_tuning_parts import TUNED
from coda_lang.backend_cutlass.cache import Cache
from coda_lang.tuning.store import TunedStore
store = TunedStore(Cache(Path(sys.argv[2])))
for i in range(15):
    store.put("k" * 64, replace(TUNED, program=sys.argv[3], tried={str(j): float(i) for j in range(i * 50)}))
"""


def test_processes_that_write_one_entry_leave_a_whole_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(tmp_path)]
    writers = [subprocess.Popen([*command, name]) for name in ("one", "two")]
    store, seen = TunedStore(Cache(tmp_path)), set()
    while any(w.poll() is None for w in writers):
        found = store.get("k" * 64)
        if found is not None:
            assert len(found.tried) % 50 == 0
            seen.add(found.program)
    assert [w.returncode for w in writers] == [0, 0]
    assert seen | {"one", "two"} == {"one", "two"}
    last = store.get("k" * 64)
    assert last is not None
    assert len(last.tried) == 14 * 50
    assert [p.suffix for p in store.path("k" * 64).parent.iterdir()] == [".tuned"]


def test_the_store(tmp_path: Path) -> None:
    store = TunedStore(Cache(tmp_path))
    assert store.get("a" * 64) is None
    assert store.show() == []
    path = store.put("a" * 64, TUNED)
    assert store.get("a" * 64) == TUNED
    assert store.get("b" * 64) is None
    store.put("c" * 64, replace(TUNED, program="other"))
    assert {e.value.program for e in store.show()} == {"linear", "other"}
    (path.parent / ".tmp-left").write_text("half")
    assert store.clear()[0] == 2
    assert not list(tmp_path.rglob("*.tuned"))
    assert not list(tmp_path.rglob(".tmp-*"))


def test_an_entry_under_another_name_is_damaged(tmp_path: Path) -> None:
    store = TunedStore(Cache(tmp_path))
    path = store.put("a" * 64, TUNED)
    other = store.path("b" * 64)
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    assert store.get("b" * 64) is None
    assert not other.exists()


# -- the race ----------------------------------------------------------------------------------------------------------


class Track:
    """True times with noise, and a clock that slows down from stage to stage."""

    def __init__(self, times: dict[str, float], noise: float = 0.01) -> None:
        self.times, self.noise, self.slower, self.random = times, noise, 1.0, random.Random(1)
        self.asked: list[tuple[int, int]] = []

    def measure(self, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
        self.asked.append((len(names), rounds))
        self.slower *= 1.1
        return {
            n: [self.slower * self.times[n] * self.random.gauss(1, self.noise) for _ in range(rounds)] for n in names
        }


def test_the_fastest_wins_the_race_though_the_card_slows_down() -> None:
    times = {f"x{i}": 1.0 + 0.02 * i for i in range(20)}
    track = Track(times)
    found = race(list(times), "x9", track.measure)
    assert next(iter(found)) == "x0"
    assert set(found) == set(times)
    assert track.asked == [(20, ROUNDS[0]), (track.asked[1][0], ROUNDS[1]), (track.asked[2][0], LAST_ROUNDS)]
    assert track.asked[1][0] <= 11
    assert track.asked[2][0] <= 7
    assert found["x9"].dropped is None
    assert len(found["x9"].samples) == LAST_ROUNDS
    assert found["x0"].ratio == pytest.approx(1.0 / 1.18, rel=0.02)
    assert "behind the best" in str(found["x19"].dropped)
    assert "after 3 rounds" in str(found["x19"].dropped)
    order = [s.dropped is not None for s in found.values()]
    assert order == sorted(order)


def test_the_hopeless_go_first_and_the_baseline_never() -> None:
    track = Track({"base": 9.0, "good": 1.0, "bad": 2.0})
    found = race(["good", "bad"], "base", track.measure)
    assert track.asked == [(3, 3), (2, 5), (2, 10)]
    assert found["bad"].dropped == "100% behind the best, 2 of 3 after 3 rounds" or "behind" in str(
        found["bad"].dropped
    )
    assert found["base"].dropped is None
    assert found["good"].ratio == pytest.approx(1 / 9, rel=0.02)


def test_a_race_of_one() -> None:
    found = race([], "base", Track({"base": 1.0}).measure)
    assert list(found) == ["base"]
    assert found["base"].ratio == 1


def test_a_few_are_all_finalists() -> None:
    times = {f"x{i}": 1.0 + 0.01 * i for i in range(FINALISTS)}
    found = race(list(times), "x0", Track(times).measure)
    assert all(s.dropped is None for s in found.values())


# -- the shortlist -----------------------------------------------------------------------------------------------------


def test_the_first_are_of_different_shapes() -> None:
    configs, _ = ordered(Problem(4096, 4096, 4096, Footprint(0, 2)))
    first = shortlist.first(configs, 12)
    assert len(first) == len(set(first)) == 12
    assert first[0] == configs[0]
    assert len({(c.tile_m, c.tile_n, c.schedule, c.epilogue_n) for c in first}) == 12
    assert [len(shortlist.first(configs, n)) for n in range(5)] == [0, 1, 2, 3, 4]
    assert shortlist.first(configs, 1) == [configs[0]]
    assert shortlist.first([], 3) == []


def test_neighbours_differ_in_one_respect() -> None:
    configs, _ = ordered(Problem(4096, 4096, 4096, Footprint(2, 4)))
    best = [
        Config.parse("128x128,cluster=2x1,pingpong,stages=5"),
        Config.parse("128x256,cluster=2x1,cooperative,stages=3"),
    ]
    near = shortlist.neighbours(best, configs, best, 9)
    assert len(set(near)) == 9
    assert not set(near) & set(best)
    of_first = [c for c in near if c.tile_n == 128]
    assert len(of_first) == 6, "two of three are neighbours of the best"
    for config in of_first:
        changed = [
            (config.cluster_m, config.cluster_n) != (2, 1),
            (config.raster, config.swizzle) != ("n", 8),
            config.epilogue_n != 64,
            config.rolled != 0,
            config.store_stages != 2,
            config.load_stages != 2,
        ]
        assert sum(changed) == 1
    assert len(shortlist.neighbours(best, configs, best, 10_000)) < 100
    assert shortlist.neighbours([], configs, [], 5) == []
