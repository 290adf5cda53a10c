#pragma once
// A grid's place in its stream.
#include "cutlass/cutlass.h"

namespace coda {

// A grid may be started as soon as the blocks of the one before it have ended (`early`, driver.py), so that its own start
// costs less time. Before this returns it must not touch memory: from then on all that came before is done and seen.
// What follows is not let in before the end: that made short kernels and those of many tiles slower (docs/benchmarks.md).
CUTLASS_DEVICE void after_earlier_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace coda
