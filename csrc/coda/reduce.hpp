#pragma once
// Reduces: what generated loops need beside arithmetic.
#include "coda/prelude.h"
#include "coda/launch.h"
#include "coda/math.h"

namespace coda {

struct Sum { CUTLASS_DEVICE static float of(float x, float y) { return x + y; } };
struct Max { CUTLASS_DEVICE static float of(float x, float y) { return maximum(x, y); } };
struct Min { CUTLASS_DEVICE static float of(float x, float y) { return minimum(x, y); } };

// The result of a group of kGroup threads, for all of them; `thread` of the next part is kApart further. All threads of the
// block take part, in the same order of calls.
template <class Combine, int kGroup, int kApart>
CUTLASS_DEVICE float fold(float x, int part, int thread, float* shared) {
  __syncthreads();  // the last fold has been read
  shared[thread] = x;
  CUTLASS_PRAGMA_UNROLL
  for (int step = kGroup / 2; step > 0; step /= 2) {
    __syncthreads();
    if (part < step) shared[thread] = Combine::of(shared[thread], shared[thread + step * kApart]);
  }
  __syncthreads();
  return shared[thread - part * kApart];
}

}  // namespace coda
