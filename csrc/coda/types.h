#pragma once
// Element types in memory, and how they widen to the three types of a body: float, int64_t and bool.
#include <cuda/std/type_traits>
#include "cutlass/cutlass.h"

namespace coda {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };
struct e5m2 { uint8_t bits; };

// `widen` is exact. `narrow` rounds to nearest even, once; f8 clamps to its largest finite value, NaN stays.
// `narrow2` does so for two neighbours, the first in the lower half of `Pair`.
template <class T> struct Format;

template <> struct Format<float> {
  using Wide = float;
  using Pair = float2;
  CUTLASS_DEVICE static float widen(float x) { return x; }
  CUTLASS_DEVICE static float narrow(float x) { return x; }
  CUTLASS_DEVICE static float2 narrow2(float x, float y) { return {x, y}; }
};
template <> struct Format<bf16> {
  using Wide = float;
  using Pair = uint32_t;
  CUTLASS_DEVICE static float widen(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
  CUTLASS_DEVICE static bf16 narrow(float x) {
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return {r};
  }
  CUTLASS_DEVICE static uint32_t narrow2(float x, float y) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
  }
};
template <> struct Format<f16> {
  using Wide = float;
  using Pair = uint32_t;
  CUTLASS_DEVICE static float widen(f16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
  }
  CUTLASS_DEVICE static f16 narrow(float x) {
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return {r};
  }
  CUTLASS_DEVICE static uint32_t narrow2(float x, float y) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
  }
};
template <> struct Format<e4m3> {
  using Wide = float;
  using Pair = uint16_t;
  CUTLASS_DEVICE static float widen(e4m3 x) {
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(uint16_t(x.bits)));
    return Format<f16>::widen({uint16_t(r)});
  }
  CUTLASS_DEVICE static uint16_t narrow2(float x, float y) {
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(y), "f"(x));
    return r;
  }
  CUTLASS_DEVICE static e4m3 narrow(float x) { return {uint8_t(narrow2(x, 0.f))}; }
};
template <> struct Format<e5m2> {
  using Wide = float;
  using Pair = uint16_t;
  CUTLASS_DEVICE static float widen(e5m2 x) { return Format<f16>::widen({uint16_t(x.bits << 8)}); }
  CUTLASS_DEVICE static uint16_t narrow2(float x, float y) {
    uint16_t r;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(y), "f"(x));
    return r;
  }
  CUTLASS_DEVICE static e5m2 narrow(float x) { return {uint8_t(narrow2(x, 0.f))}; }
};
template <> struct Format<int32_t> {
  using Wide = int64_t;
  CUTLASS_DEVICE static int64_t widen(int32_t x) { return x; }
  CUTLASS_DEVICE static int32_t narrow(int64_t x) { return int32_t(x); }
};
template <> struct Format<int64_t> {
  using Wide = int64_t;
  CUTLASS_DEVICE static int64_t widen(int64_t x) { return x; }
  CUTLASS_DEVICE static int64_t narrow(int64_t x) { return x; }
};
template <> struct Format<bool> {
  using Wide = bool;
  CUTLASS_DEVICE static bool widen(bool x) { return x; }
  CUTLASS_DEVICE static bool narrow(bool x) { return x; }
};
template <class T> using Wide = typename Format<T>::Wide;

template <class T> struct Halves;  // widens both halves of a word
template <> struct Halves<bf16> {
  CUTLASS_DEVICE static float low(uint32_t x) { return __uint_as_float(x << 16); }
  CUTLASS_DEVICE static float high(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
};
template <> struct Halves<f16> {
  CUTLASS_DEVICE static float low(uint32_t x) { return Format<f16>::widen({uint16_t(x)}); }
  CUTLASS_DEVICE static float high(uint32_t x) { return Format<f16>::widen({uint16_t(x >> 16)}); }
};

// How N neighbours are read to be widened: two of 16 bits as a word, whose halves then take one instruction each.
template <class T, int N> constexpr bool kWords = sizeof(T) == 2 && N % 2 == 0;
template <class T, int N> using Word = cuda::std::conditional_t<kWords<T, N>, uint32_t, T>;
template <class T, int N, int kRead, class Put>
CUTLASS_DEVICE void widen_run(Word<T, N> const (&run)[kRead], Put const& put) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kRead; ++i) {
    if constexpr (kWords<T, N>) {
      put(2 * i, Halves<T>::low(run[i]));
      put(2 * i + 1, Halves<T>::high(run[i]));
    } else put(i, Format<T>::widen(run[i]));
  }
}

// N values of a thread. (cutlass::Array packs bools, and converts between types that it knows.)
template <class T, int N>
struct Values {
  T v[N];
  CUTLASS_DEVICE T& operator[](int i) { return v[i]; }
  CUTLASS_DEVICE T const& operator[](int i) const { return v[i]; }
};

// N neighbours in memory, moved at once.
template <class T, int N> struct alignas(sizeof(T) * N) Run { T v[N]; };

// N aligned neighbours, 16 bytes at a time if they are more.
template <class T, int N> constexpr int kPiece = N * int(sizeof(T)) > 16 ? 16 / int(sizeof(T)) : N;
template <int N, class T>
CUTLASS_DEVICE void read_run(T (&to)[N], T const* from) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += kPiece<T, N>) {
    const auto run = *reinterpret_cast<Run<T, kPiece<T, N>> const*>(from + i);
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kPiece<T, N>; ++c) to[i + c] = run.v[c];
  }
}
template <int N, class T>
CUTLASS_DEVICE void write_run(T* to, T const (&from)[N]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += kPiece<T, N>) {
    Run<T, kPiece<T, N>> run;
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kPiece<T, N>; ++c) run.v[c] = from[i + c];
    *reinterpret_cast<Run<T, kPiece<T, N>>*>(to + i) = run;
  }
}

}  // namespace coda
