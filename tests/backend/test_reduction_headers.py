"""Statistics of a tile as csrc/coda/reductions.hpp computes them: held to their definition in f64.

`LogSumExp` and `Welford` are the header's states in NumPy's f32, line for line. The header itself runs too, where a
C++ compiler is at hand: the states need no GPU but for their instructions, which C's functions stand for.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

HEADER = Path(__file__).parents[2] / "csrc/coda/reductions.hpp"
LANES, STEPS, RUN = 4, 2, 8  # lanes that share a row, fragments of each, elements of a fragment

F32 = np.float32
ZERO, INFINITY = F32(0), F32(np.inf)
LOG2E, LN2 = F32(1.4426950408889634), F32(0.6931471805599453)
SMALLEST = F32(np.finfo(F32).min)
Row = NDArray[np.float32]
Mask = NDArray[np.bool_]


def exp2_flush(x: Any) -> Any:
    power = np.exp2(F32(x))
    return ZERO if power < F32(2.0**-126) else power


def fmaf(x: Any, y: Any, z: Any) -> Any:
    return F32(float(x) * float(y) + float(z))  # the product is exact in f64, the sum rounded twice: an ulp at most


@dataclass
class LogSumExp:
    top: Any = -INFINITY
    sum: Any = ZERO

    @staticmethod
    def origin(top: Any) -> Any:
        return ZERO if abs(top) == INFINITY else top

    def absorb(self, x: Row, inside: Mask) -> None:
        most = self.top
        for i in range(len(x)):
            most = np.fmax(most, x[i] if inside[i] else -INFINITY)
        at = self.origin(most)
        self.sum *= exp2_flush((self.top - at) * LOG2E)
        for i in range(len(x)):
            self.sum += exp2_flush((x[i] - at) * LOG2E) if inside[i] else ZERO
        self.top = most

    def merge(self, o: LogSumExp) -> None:
        most = np.fmax(self.top, o.top)
        at = self.origin(most)
        self.sum = self.scaled(at) + o.scaled(at)
        self.top = most

    def scaled(self, at: Any) -> Any:
        if self.top == -INFINITY and self.sum == 0:
            return ZERO
        return self.sum * exp2_flush((ZERO if self.top == INFINITY else self.top - at) * LOG2E)

    def values(self) -> list[Any]:
        return [fmaf(np.log2(self.sum), LN2, self.origin(self.top))]


@dataclass
class Welford:
    count: Any = ZERO
    mean: Any = ZERO
    m2: Any = ZERO

    def absorb(self, x: Row, inside: Mask) -> None:
        o = Welford()
        for i in range(len(x)):
            o.count += F32(1) if inside[i] else ZERO
            o.mean += x[i] if inside[i] else ZERO
        if o.count == 0:
            return
        o.mean = o.mean / o.count
        for i in range(len(x)):
            d = x[i] - o.mean
            o.m2 += d * d if inside[i] else ZERO
        self.merge(o)

    def merge(self, o: Welford) -> None:
        total = self.count + o.count
        if o.count == 0 or total == 0:
            return
        d, share = o.mean - self.mean, o.count / total
        self.mean += o.mean if abs(self.mean) == INFINITY else d * share
        self.m2 += o.m2 + d * d * self.count * share
        self.count = total

    def values(self) -> list[Any]:
        return [self.count, self.mean, self.m2]


STATES: dict[str, type[LogSumExp] | type[Welford]] = {"LogSumExp": LogSumExp, "Welford": Welford}


def by_model(state: str, x: Row, inside: Mask) -> list[float]:
    """The values of a row [LANES, STEPS, RUN]: each lane absorbs its fragments, then the lanes meet as in `finish`."""
    with np.errstate(all="ignore"):
        lanes: list[Any] = [STATES[state]() for _ in range(LANES)]
        for lane, fragments, known in zip(lanes, x, inside, strict=True):
            for fragment, mask in zip(fragments, known, strict=True):
                lane.absorb(fragment, mask)
        lanes[0].merge(lanes[1])
        lanes[2].merge(lanes[3])
        lanes[0].merge(lanes[2])
        return [float(v) for v in lanes[0].values()]


HOST = """
#include <cmath>
#include <cstring>
#define CUTLASS_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
inline float infinity() { return INFINITY; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float exp2_flush(float x) { float r = exp2f(x); return r < 0x1p-126f ? 0.f : r; }
inline float log2_approx(float x) { return log2f(x); }
inline float divide(float x, float y) { return x / y; }
STATES
template <class State> State run(float const* x, bool const* in) {
  State lanes[LANES];
  for (int l = 0; l < LANES; ++l)
    for (int s = 0; s < STEPS; ++s) {
      float values[RUN];
      bool inside[RUN];
      std::memcpy(values, x + (l * STEPS + s) * RUN, sizeof(values));
      std::memcpy(inside, in + (l * STEPS + s) * RUN, sizeof(inside));
      bool whole = true;
      for (bool one : inside) whole = whole && one;
      lanes[l].absorb(values, whole, [&](int i) { return inside[i]; });
    }
  lanes[0].merge(lanes[1]);
  lanes[2].merge(lanes[3]);
  lanes[0].merge(lanes[2]);
  return lanes[0];
}
extern "C" void LogSumExp(float const* x, bool const* in, float* out) {
  out[0] = run<LogSumExpState>(x, in).value<0>();
}
extern "C" void Welford(float const* x, bool const* in, float* out) {
  const WelfordState s = run<WelfordState>(x, in);
  out[0] = s.value<0>(), out[1] = s.value<1>(), out[2] = s.value<2>();
}
"""


@pytest.fixture(scope="module")
def library(host_library: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """The header's states, compiled for the host."""
    pattern = r"^(?:struct \w+State|template <int N, class Inside, class Do>\n)[^\n]*\{.*?^\};?"
    states = re.findall(pattern, HEADER.read_text(), re.MULTILINE | re.DOTALL)
    numbers = {"LANES": LANES, "STEPS": STEPS, "RUN": RUN}
    text = re.sub(r"\b(LANES|STEPS|RUN)\b", lambda w: str(numbers[w[0]]), HOST)
    # `maximum` is the hardware's instruction; the states of sums and maxima are not the subject.
    kept = [s for s in states if "maximum(" not in s]
    return host_library(text.replace("STATES\n", "\n".join(kept) + "\n"))


def by_header(library: ctypes.CDLL, state: str, x: Row, inside: Mask, parts: int) -> list[float]:
    out = (ctypes.c_float * parts)()
    data, mask = np.ascontiguousarray(x), np.ascontiguousarray(inside)
    getattr(library, state)(data.ctypes.data_as(ctypes.c_void_p), mask.ctypes.data_as(ctypes.c_void_p), out)
    return list(out)


# -- logsumexp ---------------------------------------------------------------------------------------------------------


def logsumexp(x: Row) -> float:
    """ln Σ eˣ in f64, rounded to f32."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        top = wide.max(initial=-np.inf)
        shift = top if np.isfinite(top) else 0.0
        return float(F32(np.log(np.exp(wide - shift).sum()) + shift))


def close(got: float, want: float) -> bool:
    if np.isnan(want) or np.isinf(want):
        return bool(np.array_equal(got, want, equal_nan=True))
    return abs(got - want) <= 1e-6 + 3e-7 * abs(want)


LARGE = [3.4028234663852886e38, 3e38, 2.4e38, 2.36e38, 2e38, 1e30, 100.0, 1.0]
SPECIAL = [*LARGE, *(-x for x in LARGE), 0.0, float("inf"), -float("inf"), float("nan")]
NUMBERS = st.sampled_from(SPECIAL) | st.floats(-120, 120, width=32)
SHAPE = (LANES, STEPS, RUN)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Row, Mask]:
    """A row of few different numbers, so that whole lanes and fragments are alike, and what of it is in the problem."""
    some = draw(st.lists(NUMBERS, min_size=1, max_size=4))
    order = np.random.default_rng(draw(st.integers(0, 2**32)))
    by = draw(st.sampled_from([SHAPE, (LANES, STEPS, 1), (LANES, 1, 1), (1, STEPS, 1)]))
    picked = np.broadcast_to(order.integers(0, len(some), by), SHAPE)
    columns = draw(st.integers(1, LANES * STEPS * RUN))
    place = np.arange(LANES * STEPS * RUN).reshape(STEPS, LANES, RUN).transpose(1, 0, 2)
    return np.array(some, F32)[picked], place < columns


def filled(*values: float) -> tuple[Row, Mask]:
    """A row whose fragments, lane by lane and in turn, hold these numbers."""
    x = np.resize(np.array(values, F32), (LANES * STEPS, 1)).repeat(RUN, 1).reshape(SHAPE)
    return x, np.ones(SHAPE, bool)


EDGES = [
    (SMALLEST,),
    (SMALLEST, 5.0),
    (SMALLEST, -np.inf),
    (-np.inf, SMALLEST),
    (SMALLEST, np.inf),
    (-SMALLEST,),
    (2.5e38, -SMALLEST),
    (-SMALLEST, SMALLEST),
    (-np.inf,),
    (np.inf, -np.inf),
    (SMALLEST, np.nan),
]


@settings(max_examples=200, deadline=None)
@given(rows())
def test_a_logsumexp_is_its_definition_over_the_whole_range(row: tuple[Row, Mask]) -> None:
    x, inside = row
    (got,) = by_model("LogSumExp", x, inside)
    assert close(got, logsumexp(x[inside]))


@settings(max_examples=200, deadline=None)
@given(rows())
def test_the_headers_logsumexp_is_the_models(library: ctypes.CDLL, row: tuple[Row, Mask]) -> None:
    (got,), (model,) = by_header(library, "LogSumExp", *row, 1), by_model("LogSumExp", *row)
    assert close(got, logsumexp(row[0][row[1]]))
    assert close(got, model)


@pytest.mark.parametrize("values", EDGES)
def test_a_logsumexp_at_the_edges_of_f32(library: ctypes.CDLL, values: tuple[float, ...]) -> None:
    x, inside = filled(*values)
    want = logsumexp(x)
    assert close(by_model("LogSumExp", x, inside)[0], want)
    assert close(by_header(library, "LogSumExp", x, inside, 1)[0], want)


# -- count, mean and squares of deviations -----------------------------------------------------------------------------


def statistics(x: Row) -> list[float]:
    """Count, mean and Σ (x − mean)² in f64."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return [float(x.size), float(wide.mean()), float(((wide - wide.mean()) ** 2).sum())]


def similar(got: list[float], x: Row) -> bool:
    """Relative to the largest number, resp. to the sum of squares about 0: means may cancel."""
    want = statistics(x)
    if not np.isfinite(x).all():
        return bool(np.array_equal(got, want, equal_nan=True))
    largest = float(np.abs(x).max(initial=0.0))
    scales = 0.0, largest, x.size * largest**2
    return all(abs(g - w) <= 1e-6 * s for g, w, s in zip(got, want, scales, strict=True))


def ordinary(row: tuple[Row, Mask]) -> tuple[Row, Mask]:
    """Numbers whose squares do not overflow."""
    x, inside = row
    return np.where(np.isfinite(x), np.clip(x, -1e15, 1e15), x), inside


@settings(max_examples=200, deadline=None)
@given(rows().map(ordinary))
def test_the_headers_statistics_are_their_definition(library: ctypes.CDLL, row: tuple[Row, Mask]) -> None:
    x, inside = row
    assert similar(by_model("Welford", x, inside), x[inside])
    assert similar(by_header(library, "Welford", x, inside, 3), x[inside])


@pytest.mark.parametrize(
    "values",
    [(np.inf,), (np.inf, 1.0), (1.0, np.inf), (-np.inf, 2.0, 3.0), (np.inf, -np.inf), (np.nan, np.inf), (0.0, -0.0)],
)
def test_statistics_of_infinities(library: ctypes.CDLL, values: tuple[float, ...]) -> None:
    x, inside = filled(*values)
    assert similar(by_model("Welford", x, inside), x)
    assert similar(by_header(library, "Welford", x, inside, 3), x)
