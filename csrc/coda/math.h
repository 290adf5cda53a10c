#pragma once
// The functions behind the operation table, where one instruction or one CUDA function does not do.
// The bounds are in ulp of the result, from PTX's tables for the approximate instructions, and stated in `ir/ops.py`.
#include "coda/types.h"

namespace coda {

CUTLASS_DEVICE float infinity() { return __int_as_float(0x7f800000); }
CUTLASS_DEVICE float nan() { return __int_as_float(0x7fffffff); }

// NaN if either is; max(+0, −0) = +0: the hardware's `max.NaN` orders the zeros. Integers as usual.
CUTLASS_DEVICE float maximum(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
CUTLASS_DEVICE float minimum(float x, float y) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
CUTLASS_DEVICE int64_t maximum(int64_t x, int64_t y) { return x > y ? x : y; }
CUTLASS_DEVICE int64_t minimum(int64_t x, int64_t y) { return x < y ? x : y; }

CUTLASS_DEVICE float divide(float x, float y) {  // 2 ulp over the whole range
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
CUTLASS_DEVICE float exp2_approx(float x) {  // 2 ulp; subnormal results are kept
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
CUTLASS_DEVICE float exp2_flush(float x) {  // 2 ulp; results below 2^-126 are 0
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
CUTLASS_DEVICE float log2_approx(float x) {  // 2^-22 absolute near 1, 1 ulp elsewhere
  float r;
  asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
CUTLASS_DEVICE float reciprocal_approx(float x) {  // 1 ulp
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
CUTLASS_DEVICE float rsqrt_approx(float x) {  // 2^-22.9 relative
  float r;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
CUTLASS_DEVICE float sqrt_approx(float x) {  // 2^-23 relative
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

CUTLASS_DEVICE float log_approx(float x) { return kLn2 * log2_approx(x); }

// 1 / (1 + 2^(−x·log₂e)). The exponent's rounding is an absolute error of |x|·2^-24, so a relative one of the sum only where
// the power outweighs the 1: 16 ulp for x > −16, and below that the value itself is under 2^-23.
CUTLASS_DEVICE float sigmoid(float x) { return reciprocal_approx(1.f + exp2_flush(-kLog2E * x)); }

// Φ(x), the normal distribution's. Φ(−a) = e^(−a²/2)·Q(t) with t = 1 / (a + 2⅞): Q, of degree 7, is fitted to ½·erfcx(a/√2)
// for 0 ≤ a ≤ 13.3 and is, with its own roundings, within 5.5e-7 of it. As in `sigmoid`, the exponent's rounding is an absolute
// error, of about a²·2^-24: with every approximation off in the same direction 29 ulp for a² < 32, and beyond that the value
// itself is under 2^-26; what is below 2^-126 is 0, also where Q is negative, beyond a = 11600.
CUTLASS_DEVICE float normal_cdf(float x) {
  const float t = reciprocal_approx(fabsf(x) + 2.875f);
  float q = 0x1.3d9586p+6f;
  q = __fmaf_rn(q, t, -0x1.d02b94p+6f);
  q = __fmaf_rn(q, t, 0x1.8c33dap+5f);
  q = __fmaf_rn(q, t, -0x1.c6c988p+0f);
  q = __fmaf_rn(q, t, 0x1.e51976p+1f);
  q = __fmaf_rn(q, t, 0x1.16303p+0f);
  q = __fmaf_rn(q, t, 0x1.9acc02p-2f);
  q = __fmaf_rn(q, t, -0x1.214884p-15f);
  const float tail = exp2_flush(x * x * (-0.5f * kLog2E)) * fabsf(q);
  return x < 0.f ? tail : 1.f - tail;
}

CUTLASS_DEVICE float absolute(float x) { return fabsf(x); }
CUTLASS_DEVICE int64_t absolute(int64_t x) { return x < 0 ? -x : x; }

// x as a store of T would round it, widened again.
template <class T> CUTLASS_DEVICE float rounded(float x) { return Format<T>::widen(Format<T>::narrow(x)); }

CUTLASS_DEVICE int64_t idiv(int64_t x, int64_t y) {
  if (y == 0) return 0;
  const int64_t q = x / y;
  return q - (x % y != 0 && (x < 0) != (y < 0));
}
CUTLASS_DEVICE int64_t modulo(int64_t x, int64_t y) { return y == 0 ? 0 : x - y * idiv(x, y); }

}  // namespace coda
