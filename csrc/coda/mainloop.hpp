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
    TensorMap const* a_end;  // of the rows that no whole box has; none if they are MN-major
    TensorMap const* b_end;
    int m, n;                // the rows of a and of b
    TensorMap const* maps;   // all of the kernel's, for prefetching
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

  // One operand's part of the stages of a tile. A tile is shared by the blocks of one row or column of the cluster: each
  // loads 1/kShares of it and sends it to all.
  //
  // TMA takes longer over a row past the end than over one that it brings. So rows that are not there are not asked for: the
  // last box has only those that are, and chunks of none are left out. In their place stays what was there, which comes to
  // nothing. The barrier counts them as brought.
  template <bool kMajor, int kRows, int kShares, int kRun>
  struct Operand {
    static constexpr int kBox = kRows / kShares;          // rows of a share, if they are K-major
    static constexpr int kUnit = kMajor ? 64 : 8 * kRun;  // rows that come together
    static_assert(kMajor ? kRun == 1 && kRows % 64 == 0 : kBox % kUnit == 0);
    TensorMap const* whole;  // of boxes that are all there: where all are, its address need not be carried along
    TensorMap const* map;    // of this tile's
    uint32_t absent = 0;     // bytes of a stage
    uint16_t mask;           // of the blocks that it goes to
    int row, share;          // the tile's first; which of its shares is this block's
    int left = kRows;        // rows to bring, from this share's first on: of a box, or of more than one, or none (≤ 0)

    CUTLASS_DEVICE Operand(TensorMap const* whole, TensorMap const* end, int rows, int row, int share, uint16_t mask)
        : whole(whole), map(whole), mask(mask), row(row), share(share) {
      const int there = rows - row;
      if (there >= kRows) return;
      const int brought = there > 0 ? (there + kUnit - 1) / kUnit * kUnit : 0;
      absent = (kRows - brought) * 128;
      left = kMajor ? brought : brought - share * kBox;
      if (!kMajor && left < kBox) map = end;
    }

    template <bool kAll>
    CUTLASS_DEVICE void load(uint64_t* barrier, uint8_t* smem, int k) const {
      TensorMap const* from = kAll ? whole : map;
      if constexpr (kMajor) {
        CUTLASS_PRAGMA_UNROLL
        for (int chunk = 0; chunk < kRows / 64; ++chunk) {
          uint8_t* to = smem + chunk * 8192 + share * (8192 / kShares);
          if (kAll || chunk * 64 < left)
            tma_load<(kShares > 1)>(from, barrier, mask, to, row + chunk * 64, k + share * (64 / kShares));
        }
      } else if (kAll || left > 0) {
        uint8_t* to = smem + share * kBox * 128;
        const int first = row + share * kBox;
        if constexpr (kRun > 1) tma_load_groups<(kShares > 1)>(from, barrier, mask, to, k, first / (8 * kRun));
        else tma_load<(kShares > 1)>(from, barrier, mask, to, k, first);
      }
    }
  };

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
    const Operand<kMajorA, kTileM, kClusterN, 1> a(p.a, p.a_end, p.m, m, y, mask_a);
    const Operand<kMajorB, kTileN, kClusterM, Config::kRun> b(p.b, p.b_end, p.n, n, x, mask_b);
    const uint32_t absent = a.absent + b.absent;
    // The last tile's end is what L2 still holds, of a row or column of tiles that this one shares. `write` has counted all steps.
    const bool backwards = Config::kSerpentine && k_tiles > 0 && (write.count() / uint32_t(k_tiles) & 1);
    const int step = backwards ? -kTileK : kTileK;
    // Most tiles are all there. Their steps are kept as short as they can be: the epilogues' warps take this one's turns.
    auto walk = [&](auto all) {
      constexpr bool kAll = decltype(all)::value;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int k = backwards ? (k_tiles - 1) * kTileK : 0; k_tiles > 0; --k_tiles, k += step, ++write) {
        pipeline.producer_acquire(write);
        uint64_t* barrier = reinterpret_cast<uint64_t*>(pipeline.producer_get_barrier(write));
        const int stage = write.index();
        if constexpr (!kAll) cutlass::arch::ClusterTransactionBarrier::complete_transaction(barrier, rank, absent);
        a.template load<kAll>(barrier, smem.a[stage], k);
        b.template load<kAll>(barrier, smem.b[stage], k);
      }
    };
    if (absent) walk(cute::false_type{});
    else walk(cute::true_type{});
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
