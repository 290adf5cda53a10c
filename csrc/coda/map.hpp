#pragma once
// A map: the same nodes without a product. One block of four warps for each 64-row tile; the accumulator is absent. Tiles that
// TMA brings are asked for all at once, each subtile with its own barrier.
#include "coda/prelude.h"
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "coda/epilogue.hpp"

namespace coda {

template <class Config, class Tree>
CUTLASS_DEVICE void run_map(int m, int n, typename Tree::Params const& params) {
  extern __shared__ __align__(1024) char smem[];
  const int columns = (n + Config::kTileN - 1) / Config::kTileN;
  const int row = int(blockIdx.x) / columns, col = int(blockIdx.x) % columns, thread = threadIdx.x;
  const coda::Tile tile{row * Config::kTileM, col * Config::kTileN, m, n, row, col, thread / 32, thread % 32, thread};
  using Driver = Epilogue<Config, Tree>;
  constexpr int kSubtiles = Config::kTileM / 64 * Config::kTileN / Config::kSub;
  float nothing[Config::kTileM / 64 * Config::kTileN / 2];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Config::kTileM / 64 * Config::kTileN / 2; ++i) nothing[i] = 0.f;
  struct Storage { typename Driver::TensorStorage tensors; uint64_t barriers[kSubtiles]; };
  auto& storage = *reinterpret_cast<Storage*>(smem);
  static_assert(sizeof(Storage) <= Config::kShared);
  auto* arrived = reinterpret_cast<cutlass::arch::ClusterTransactionBarrier*>(storage.barriers);
  Driver driver({params}, storage.tensors);
  if constexpr (Config::kLoadBytes > 0) {
    static_assert(Config::kLoadStages == kSubtiles);
    if (thread == 0) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSubtiles; ++i) arrived[i].init(1);
      cutlass::arch::fence_barrier_init();
      auto producer = driver.tree.get_producer_load_callbacks(
          fusion::ProducerLoadArgs<int, int, coda::Tile, int, int>{0, 0, tile, 0, 0, 0});
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSubtiles; ++i) {
        arrived[i].arrive_and_expect_tx(Config::kLoadBytes);
        producer.step(&storage.barriers[i], 0, i, i, true);
      }
    }
    __syncthreads();
  }
  driver.walk(tile, nothing, [&](auto& callbacks, int epi_m, int epi_n) {
    if constexpr (Config::kLoadBytes > 0) {
      arrived[epi_n].wait(0);
      callbacks.previsit(epi_m, epi_n, epi_n, true);
    }
  });
  if constexpr (Config::kStoreStages > 0) cute::tma_store_wait<0>();
}

}  // namespace coda
