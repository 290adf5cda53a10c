#pragma once
// The mainloop: TMA into a ring of shared-memory stages, wgmma out of it, for 16-bit operands of either memory order.
//
// It has the interface of CUTLASS's CollectiveMma and uses its pipelines and wgmma atoms, but addresses registers,
// shared memory and TMA with plain index arithmetic, which compiles in a fraction of the time.
//
// A stage holds 128-byte rows in TMA's 128-byte swizzle. K-major operands: one row of 64 k for each row of the tile.
// MN-major ones: chunks of 64 rows of the tile, 64 k deep, one 128-byte row for each k (8 KiB a chunk).
#include "cute/arch/copy_sm90.hpp"
#include "cute/arch/mma_sm90_gmma.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "coda/tensormap.h"

namespace coda {

template <class Op, int... I>
CUTLASS_DEVICE void wgmma(uint64_t a, uint64_t b, float* d, cute::SM90::GMMA::ScaleOut scale, cute::integer_sequence<int, I...>) {
  Op::fma(a, b, d[I]..., scale);
}

// In place of cute::TiledMMA, of which the kernel layer asks the thread count and the accumulators.
template <int kThreads, int kAccumulators> struct TiledMma {};
template <int kThreads, int kAccumulators>
CUTLASS_HOST_DEVICE constexpr cute::C<kThreads> size(TiledMma<kThreads, kAccumulators> const&) { return {}; }
template <int kThreads, int kAccumulators, class Shape>
CUTLASS_DEVICE auto partition_fragment_C(TiledMma<kThreads, kAccumulators> const&, Shape const&) {
  return cute::make_tensor<float>(cute::make_layout(cute::C<kAccumulators>{}));
}

template <class Config, class Op, class Schedule>
struct Mainloop {
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = 64, kStages = Config::kStages;
  static constexpr int kClusterM = Config::kClusterM, kClusterN = Config::kClusterN;
  static constexpr int kWarpgroups = Config::kWarpgroups;  // that share a tile
  static constexpr int kAtoms = kTileM / 64 / kWarpgroups;  // of 64 rows, for each of them
  static constexpr bool kMajorA = Config::kMajorA, kMajorB = Config::kMajorB;  // MN-major
  static constexpr bool kEnds = !kMajorA && kClusterN == 1;  // a tile of a is loaded whole, row by row

  using TileShape = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
  using ClusterShape = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
  using TiledMma = coda::TiledMma<128 * kWarpgroups, kAtoms * kTileN / 2>;
  using ArchTag = cutlass::arch::Sm90;
  using ElementA = typename Config::Element;
  using ElementB = ElementA;
  using ElementAccumulator = float;
  using StrideA = cute::tuple<int64_t, cute::_1, int64_t>;
  using StrideB = StrideA;
  using DispatchPolicy = cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<kStages, ClusterShape, Schedule>;
  using MainloopPipeline = cutlass::PipelineTmaAsync<kStages>;
  using PipelineState = cutlass::PipelineState<kStages>;
  static constexpr int NumProducerThreadEvents = 1;

  struct TensorStorage {
    alignas(1024) uint8_t a[kStages][kTileM * 128];
    alignas(1024) uint8_t b[kStages][kTileN * 128];
  };
  using PipelineStorage = typename MainloopPipeline::SharedStorage;
  struct SharedStorage { TensorStorage tensors; PipelineStorage pipeline; };
  struct Arguments {};
  struct Params {
    TensorMap const* a;
    TensorMap const* b;
    TensorMap const* a_end;  // of the rows of a that no whole tile has, if kEnds
    int rows;                // of a
    TensorMap const* maps;  // all of the kernel's, for prefetching
    uint32_t tma_transaction_bytes = (kTileM + kTileN) * 128;
  };

  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const& p) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Config::kMaps; ++i) prefetch(p.maps + i);
  }

  // The kernel layer reads the numbers of tiles off these, and nothing else.
  template <class Shape>
  CUTLASS_DEVICE auto load_init(Shape const& shape, Params const&) const {
    const int m = (cute::get<0>(shape) + kTileM - 1) / kTileM, n = (cute::get<1>(shape) + kTileN - 1) / kTileN;
    const int k = (cute::get<2>(shape) + kTileK - 1) / kTileK;
    auto tiles = [k](int count) {
      auto layout = cute::make_layout(cute::make_shape(cute::_1{}, cute::_1{}, count, k, cute::_1{}));
      return cute::make_tensor(static_cast<ElementA const*>(nullptr), layout);
    };
    return cute::make_tuple(tiles(m), tiles(n));
  }

  // One operand's share of a stage. A tile is shared by the blocks of one row or column of the cluster: each loads
  // 1/kShares of it and sends it to all.
  template <bool kMajor, int kRows, int kShares, int kRun>
  CUTLASS_DEVICE static void load_share(TensorMap const* map, uint64_t* barrier, uint16_t mask, uint8_t* smem, int row,
                                        int k, int share) {
    static_assert(kRun == 1 || (!kMajor && kRows / kShares % (8 * kRun) == 0));
    if constexpr (kMajor) {
      CUTLASS_PRAGMA_UNROLL
      for (int chunk = 0; chunk < kRows / 64; ++chunk) {
        uint8_t* to = smem + chunk * 8192 + share * (8192 / kShares);
        tma_load<(kShares > 1)>(map, barrier, mask, to, row + chunk * 64, k + share * (64 / kShares));
      }
    } else {
      uint8_t* to = smem + share * (kRows / kShares) * 128;
      const int first = row + share * (kRows / kShares);
      if constexpr (kRun > 1) tma_load_groups<(kShares > 1)>(map, barrier, mask, to, k, first / (8 * kRun));
      else tma_load<(kShares > 1)>(map, barrier, mask, to, k, first);
    }
  }

  template <class Inputs, class Coord, class KIter>
  CUTLASS_DEVICE void load(Params const& p, MainloopPipeline pipeline, PipelineState write, Inputs const&,
                           Coord const& coord, KIter k_iter, int k_tiles, int, uint32_t rank, TensorStorage& smem) {
    if (!cute::elect_one_sync()) return;
    const int x = int(rank) % kClusterM, y = int(rank) / kClusterM;
    const int m = int(cute::get<0>(coord)) * kTileM, n = int(cute::get<1>(coord)) * kTileN;
    uint16_t mask_a = 0, mask_b = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kClusterN; ++i) mask_a |= uint16_t(1) << (x + i * kClusterM);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kClusterM; ++i) mask_b |= uint16_t(1) << (i + y * kClusterM);
    // TMA takes longer over a row past the end than over one that it brings. So the last tile's box has only the rows that
    // there are; the others keep what they held, and come to nothing. The barrier counts them as brought.
    TensorMap const* map_a = p.a;
    int rows = kTileM;
    if (kEnds && p.rows - m < kTileM) {
      map_a = p.a_end;
      rows = p.rows > m ? (p.rows - m + 7) / 8 * 8 : 0;
    }
    const uint32_t absent = (kTileM - rows) * 128;
    // The last tile's end is what L2 still holds, of a row or column of tiles that this one shares. `write` has counted all steps.
    const bool backwards = Config::kSerpentine && k_tiles > 0 && (write.count() / uint32_t(k_tiles) & 1);
    const int step = backwards ? -kTileK : kTileK;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int k = backwards ? (k_tiles - 1) * kTileK : 0; k_tiles > 0; --k_tiles, k += step, ++write) {
      pipeline.producer_acquire(write);
      uint64_t* barrier = reinterpret_cast<uint64_t*>(pipeline.producer_get_barrier(write));
      const int stage = write.index();
      if (absent) cutlass::arch::ClusterTransactionBarrier::complete_transaction(barrier, rank, absent);
      if (rows) load_share<kMajorA, kTileM, kClusterN, 1>(map_a, barrier, mask_a, smem.a[stage], m, k, y);
      load_share<kMajorB, kTileN, kClusterM, Config::kRun>(p.b, barrier, mask_b, smem.b[stage], n, k, x);
    }
  }
  CUTLASS_DEVICE void load_tail(MainloopPipeline pipeline, PipelineState write) {
    if (cute::elect_one_sync()) pipeline.producer_tail(write);
  }

  // A wgmma descriptor of a 128-byte-swizzled operand; offsets are in units of 16 bytes. The stride is that between groups
  // of 8 rows (of the tile, or of k); the leading offset that between MN-major chunks.
  CUTLASS_DEVICE static uint64_t descriptor(void const* smem) {
    return (uint64_t(1) << 62) | (uint64_t(1024 >> 4) << 32) | (uint64_t(8192 >> 4) << 16) |
           ((cute::cast_smem_ptr_to_uint(smem) & 0x3FFFF) >> 4);
  }
  // 16 k further: 32 bytes along a row, or 16 rows.
  static constexpr uint64_t kStepA = (kMajorA ? 2048 : 32) >> 4, kStepB = (kMajorB ? 2048 : 32) >> 4;

  template <class Accumulators>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Accumulators& accumulators, int k_tiles,
                          int thread, TensorStorage& smem, Params const&) {
    float* d = accumulators.data();
    if (k_tiles == 0) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtoms * kTileN / 2; ++i) d[i] = 0.f;
      return;
    }
    const int warpgroup = kWarpgroups == 1 ? 0 : __shfl_sync(0xffffffffu, thread / 128, 0);
    const uint64_t a0 = descriptor(smem.a[0]) + warpgroup * (8192 >> 4), b0 = descriptor(smem.b[0]);
    PipelineState release = read;
    auto tile = [&](cute::SM90::GMMA::ScaleOut first) {
      const uint64_t a = a0 + uint64_t(read.index()) * (kTileM * 128 >> 4);
      const uint64_t b = b0 + uint64_t(read.index()) * (kTileN * 128 >> 4);
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kTileK / 16; ++k) {
        CUTLASS_PRAGMA_UNROLL
        for (int m = 0; m < kAtoms; ++m) {
          wgmma<Op>(a + k * kStepA + m * kWarpgroups * (8192 >> 4), b + k * kStepB, d + m * (kTileN / 2),
                    k ? cute::SM90::GMMA::ScaleOut::One : first, cute::make_integer_sequence<int, kTileN / 2>{});
        }
      }
      cute::warpgroup_commit_batch();
    };
    auto fence = [&] {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtoms * kTileN / 2; ++i) cute::warpgroup_fence_operand(d[i]);
    };
    fence();
    pipeline.consumer_wait(read, pipeline.consumer_try_wait(read));
    tile(cute::SM90::GMMA::ScaleOut::Zero);
    ++read;
    fence();
    CUTLASS_PRAGMA_NO_UNROLL
    for (--k_tiles; k_tiles > 0; --k_tiles) {
      pipeline.consumer_wait(read, pipeline.consumer_try_wait(read));
      fence();
      tile(cute::SM90::GMMA::ScaleOut::One);
      cute::warpgroup_wait<1>();
      fence();
      pipeline.consumer_release(release);
      ++read;
      ++release;
    }
    fence();
  }
  CUTLASS_DEVICE void mma_tail(MainloopPipeline pipeline, PipelineState release, int k_tiles) {
    cute::warpgroup_wait<0>();
    if (k_tiles == 0) return;
    release.advance(k_tiles - 1);
    pipeline.consumer_release(release);
  }
};

}  // namespace coda
