#pragma once
// A kernel: CUTLASS's warp-specialised kernel layer over our mainloop, epilogue and scheduler.
#include "coda/prelude.h"
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#ifdef CODA_PINGPONG
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp"
#else
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp"
#endif
#include "coda/mainloop.hpp"
#include "coda/epilogue.hpp"

namespace coda {

#ifdef CODA_PINGPONG
using KernelSchedule = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
#else
using KernelSchedule = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
#endif

template <class Config, class Op, class Tree>
using Gemm = cutlass::gemm::kernel::GemmUniversal<
    cute::Shape<int, int, int, int>, Mainloop<Config, Op, KernelSchedule>, Epilogue<Config, Tree>,
    Scheduling<Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN, Config::kSwizzle, Config::kAlongM>>;

template <class Kernel>
CUTLASS_DEVICE void run(int m, int n, int k, TensorMap const* maps, typename Kernel::CollectiveEpilogue::Params const& epilogue) {
  extern __shared__ char smem[];
  typename Kernel::Params params{};
  params.problem_shape = cute::make_shape(m, n, k, 1);
  params.mainloop.a = maps;
  params.mainloop.b = maps + 1;
  params.mainloop.a_end = maps + 2;  // each is there if its operand is K-major: `_operands` of emit.py
  params.mainloop.b_end = maps + 2 + !Kernel::CollectiveMainloop::kMajorA;
  params.mainloop.m = m;
  params.mainloop.n = n;
  params.mainloop.maps = maps;
  params.epilogue = epilogue;
  params.scheduler = {m, n};
  Kernel kernel;
  kernel(params, smem);
}

}  // namespace coda
