#pragma once
// In place of CUTLASS's header of this name: the same data without its queries of the host runtime.
#include "cutlass/device_kernel.h"

namespace cutlass {
struct KernelHardwareInfo {
  int device_id = 0;
  int sm_count = 0;
  int max_active_clusters = 0;
};
}  // namespace cutlass
