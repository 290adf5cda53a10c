#pragma once
// A persistent tile scheduler for CUTLASS's kernel layer.
//
// Clusters of tiles are walked in bands: `swizzle` cluster rows (or columns) at a time, so that the tiles in flight
// share operands in L2, and to and fro, so that a band begins with what L2 holds of the last one's end. Unlike
// CUTLASS's own, it does not pad the grid to a multiple of the swizzle: the last band is narrower. Only a cluster may
// reach past the edge, by less than its own size.
#include "cutlass/cutlass.h"
#include "cutlass/pipeline/pipeline.hpp"
#include "coda/launch.h"

namespace coda {

template <int kTileM, int kTileN, int kClusterM, int kClusterN, int kSwizzle, bool kAlongM>
struct Scheduling {};  // the tag that selects `Scheduler`

template <class Tag> struct Scheduler;

// A static schedule has no queue to fetch work from.
struct NoPipeline {
  static constexpr uint32_t Stages = 0;
  using PipelineState = cutlass::PipelineState<Stages>;
  struct Params {};
  struct SharedStorage {};
  CUTLASS_DEVICE NoPipeline(SharedStorage const&, Params const&) {}
  CUTLASS_DEVICE void producer_acquire(PipelineState const&) {}
  CUTLASS_DEVICE void producer_commit(PipelineState const&) {}
};

template <int kTileM, int kTileN, int kClusterM, int kClusterN, int kSwizzle, bool kAlongM>
struct Scheduler<Scheduling<kTileM, kTileN, kClusterM, kClusterN, kSwizzle, kAlongM>> {
  struct Params { int m, n; };  // the problem's extents
  struct Arguments {};
  using Pipeline = NoPipeline;
  using ThrottlePipeline = NoPipeline;
  static constexpr bool IsDynamicPersistent = false;
  struct CLCResponse {};
  struct SharedStorage {
    CUTLASS_DEVICE Pipeline::SharedStorage pipeline() { return {}; }
    CUTLASS_DEVICE ThrottlePipeline::SharedStorage throttle_pipeline() { return {}; }
    CUTLASS_DEVICE CLCResponse* data() { return nullptr; }
  };
  struct WorkTileInfo {
    int32_t M_idx = 0, N_idx = 0, L_idx = 0;
    bool valid = false;
    CUTLASS_DEVICE bool is_valid() const { return valid; }
    CUTLASS_DEVICE int32_t reduction_subtile_idx() const { return -1; }
  };

  Params scheduler_params;
  uint32_t rows, cols;  // of clusters
  uint32_t next, step;

  CUTLASS_DEVICE explicit Scheduler(Params const& p)
      : scheduler_params(p),
        rows((uint32_t(p.m) + kTileM * kClusterM - 1) / (kTileM * kClusterM)),
        cols((uint32_t(p.n) + kTileN * kClusterN - 1) / (kTileN * kClusterN)),
        next(blockIdx.x / kClusterM), step(gridDim.x / kClusterM) {}

  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    if (next >= rows * cols) return {};
    const uint32_t minor = kAlongM ? cols : rows, major = kAlongM ? rows : cols;
    const uint32_t band = next / (kSwizzle * major), first = band * kSwizzle, at = next - first * major;
    const uint32_t width = minor - first < kSwizzle ? minor - first : uint32_t(kSwizzle);
    const uint32_t step = width == kSwizzle ? at / kSwizzle : at / width, across = first + at - step * width;
    const uint32_t along = band & 1 ? major - 1 - step : step;
    const uint32_t row = kAlongM ? along : across, col = kAlongM ? across : along;
    return {int32_t(row * kClusterM + blockIdx.x % kClusterM), int32_t(col * kClusterN + blockIdx.y), 0, true};
  }
  // Asked for by all threads, before any of them touches memory.
  template <class Cluster> CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) {
    after_earlier_grids();
    return get_current_work();
  }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { next += step * count; }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class P, class S> CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, P&, S) { return fetch_next_work(work); }

  // One unit of work is one whole tile: nothing is split or reduced between blocks.
  CUTLASS_DEVICE static bool valid_warpgroup_in_work_tile(WorkTileInfo const&) { return true; }
  CUTLASS_DEVICE static bool compute_epilogue(WorkTileInfo const&, Params const&) { return true; }
  CUTLASS_DEVICE static bool requires_separate_reduction(Params const&) { return false; }
  template <class Acc> CUTLASS_DEVICE static void fixup(Params const&, WorkTileInfo const&, Acc&, uint32_t, uint32_t) {}
  template <class Shape, class Tile>
  CUTLASS_DEVICE static int get_work_k_tile_count(WorkTileInfo const&, Shape shape, Tile tile) {
    return cute::ceil_div(cute::get<2>(shape), cute::get<2>(tile));
  }
  CUTLASS_DEVICE static uint32_t get_work_k_tile_start(WorkTileInfo const&) { return 0; }
};

}  // namespace coda

namespace cutlass::gemm {
struct StreamKScheduler {};  // a tag that CUTLASS's pingpong kernel refuses by name
}

namespace cutlass::gemm::kernel::detail {
// CUTLASS's kernels look their scheduler up by a tag.
template <class Tag, class Arch, class Tile, class Cluster, uint32_t kStages = 2, class Shape = void>
struct TileSchedulerSelector { using Scheduler = coda::Scheduler<Tag>; };
}  // namespace cutlass::gemm::kernel::detail
