#pragma once
// The epilogue: drives a tree of visitor nodes over the accumulators of a tile, subtile by subtile.
//
// A loop over the subtiles keeps long epilogues within the instruction cache, where straight-line code would be fetched anew
// for each tile.
//
// It has the interface of CUTLASS's CollectiveEpilogue and calls the nodes as CUTLASS's would. Warps go their own way: what
// they store passes through shared memory of their own, and only reductions along a column make them meet.
#include "coda/reductions.hpp"
#include "coda/tiles.hpp"

namespace coda {

template <class Config, class Tree>
struct Epilogue {
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kSub = Config::kSub;
  static constexpr int kWarpgroups = Config::kWarpgroups, kAtoms = kTileM / 64 / kWarpgroups, kSubtiles = kTileN / kSub;
  static constexpr int kLoadStages = Config::kLoadStages ? Config::kLoadStages : 1;

  using ElementC = void;
  using ElementD = cutlass::half_t;  // asked for, never used
  using StrideC = cute::tuple<int64_t, cute::_1, int64_t>;
  using StrideD = StrideC;
  using LoadPipeline = cutlass::PipelineTransactionAsync<kLoadStages>;
  using LoadPipelineState = cutlass::PipelineState<kLoadStages>;
  using StorePipeline = cutlass::PipelineTmaStore<1>;
  using StorePipelineState = cutlass::PipelineState<1>;
  static constexpr bool RequiresTransactionBytes = true;
  using TensorStorage = typename Tree::SharedStorage;
  using PipelineStorage = typename LoadPipeline::SharedStorage;
  struct SharedStorage { TensorStorage tensors; PipelineStorage pipeline; };
  struct Arguments {};
  struct Params {
    typename Tree::Params tree;
    uint32_t tma_transaction_bytes = Config::kLoadBytes;
  };

  template <class T> CUTLASS_HOST_DEVICE static constexpr int get_load_pipe_increment(T) { return kAtoms * kSubtiles; }
  template <class T> CUTLASS_HOST_DEVICE static constexpr int get_store_pipe_increment(T) { return 1; }
  CUTLASS_DEVICE static void prefetch_tma_descriptors(Params const&) {}  // the mainloop does, for all of the kernel's

  Tree tree;
  CUTLASS_DEVICE Epilogue(Params const& p, TensorStorage& smem) : tree(p.tree, smem) {}
  CUTLASS_DEVICE bool is_producer_load_needed() const { return Config::kLoadBytes > 0; }

  template <class Shape, class Coord>
  CUTLASS_DEVICE static Tile tile_of(Shape const& shape, Coord const& coord, int thread) {
    const int row = cute::get<0>(coord), col = cute::get<1>(coord);
    return {row * kTileM, col * kTileN, int(cute::get<0>(shape)), int(cute::get<1>(shape)), row, col,
            thread / 32 % 4, thread % 32, thread};
  }

  template <class Shape, class Block, class Coord, class Mma>
  CUTLASS_DEVICE auto load(LoadPipeline pipeline, LoadPipelineState state, Shape const& shape, Block const&, Coord const& coord,
                           Mma const&, int lane, TensorStorage&, int = -1) {
    const Tile tile = tile_of(shape, coord, lane);
    const fusion::ProducerLoadArgs<int, int, Tile, int, int> args{0, 0, tile, 0, 0, lane};
    auto callbacks = tree.get_producer_load_callbacks(args);
    const bool leader = cute::elect_one_sync();
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < kAtoms * kSubtiles; ++i, ++state) {
      pipeline.producer_acquire(state);
      if (leader) {
        pipeline.producer_expect_transaction(state);
        uint64_t* barrier = reinterpret_cast<uint64_t*>(pipeline.producer_get_barrier(state));
        callbacks.step(barrier, i / kSubtiles * kWarpgroups, i % kSubtiles, state.index(), true);
      }
      pipeline.producer_commit(state);
    }
    return state;
  }
  CUTLASS_DEVICE auto load_tail(LoadPipeline pipeline, LoadPipelineState state) {
    pipeline.producer_tail(state);
    return state;
  }

  template <class Shape, class Block, class Coord, class Accumulators, class Mma>
  CUTLASS_DEVICE auto store(LoadPipeline pipeline, LoadPipelineState load, StorePipeline, StorePipelineState store,
                            Shape const& shape, Block const&, Coord const& coord, Accumulators& accumulators, Mma const&,
                            int thread, TensorStorage&, int = -1) {
    const Tile tile = tile_of(shape, coord, thread);
    walk(tile, accumulators.data(), [&](auto& callbacks, int epi_m, int epi_n) {
      if constexpr (Config::kLoadBytes > 0) {
        pipeline.consumer_wait(load);
        callbacks.previsit(epi_m, epi_n, load.index(), true);
        cutlass::arch::fence_view_async_shared();
        pipeline.consumer_release(load);
        ++load;
      }
    });
    return cute::make_tuple(load, store);
  }

  // The consumer's side of a tile. `arrive` waits for what the producer brings to a subtile.
  template <class Arrive>
  CUTLASS_DEVICE void walk(Tile const& tile, float* accumulators, Arrive const& arrive) {
    int unused = 0;
    const fusion::ConsumerStoreArgs<int, int, Tile, int, int, int, int, int, int, int, int> args{
        0, 0, tile, 0, 0, 0, 0, 0, 0, 0, unused, tile.thread};
    auto callbacks = tree.template get_consumer_store_callbacks<true>(args);
    callbacks.begin();
    const int warpgroup = kWarpgroups == 1 ? 0 : tile.thread / 128;
    auto subtile = [&](cutlass::Array<float, kSub / 2> const& fragment, int i) {
      const int epi_m = i / kSubtiles * kWarpgroups + warpgroup, epi_n = i % kSubtiles;
      callbacks.begin_loop(epi_m, epi_n);
      arrive(callbacks, epi_m, epi_n);
      callbacks.visit(fragment, 0, epi_m, epi_n);
      if constexpr (Config::kStoreStages > 0) {
        const int stage = i % Config::kStoreStages;
        if (tile.lane == 0) cute::tma_store_wait<Config::kStoreStages - 1>();
        __syncwarp();
        callbacks.postreduce(epi_m, epi_n, stage, true);
        cute::tma_store_fence();
        __syncwarp();
        callbacks.tma_store(epi_m, epi_n, stage, tile.lane == 0);
        if (tile.lane == 0) cute::tma_store_arrive();
      }
      callbacks.end_loop(epi_m, epi_n);
    };
    if constexpr (Config::kRolled) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (int i = 0; i < kAtoms * kSubtiles; ++i) {
        cutlass::Array<float, kSub / 2> fragment;
        select<0>(fragment, accumulators, i);
        subtile(fragment, i);
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtoms * kSubtiles; ++i)
        subtile(*reinterpret_cast<cutlass::Array<float, kSub / 2>*>(accumulators + i * (kSub / 2)), i);
    }
    callbacks.end();
  }

  // Subtile i of the accumulators. Registers have no addresses, so this is a jump to one of as many copies; the empty statement
  // keeps the compiler from making them all and choosing afterwards.
  template <int kAt>
  CUTLASS_DEVICE static void select(cutlass::Array<float, kSub / 2>& fragment, float const* accumulators, int i) {
    if (kAt == kAtoms * kSubtiles - 1 || i == kAt) {
      asm volatile("");
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kSub / 2; ++j) fragment[j] = accumulators[kAt * (kSub / 2) + j];
    } else if constexpr (kAt < kAtoms * kSubtiles - 1) {
      select<kAt + 1>(fragment, accumulators, i);
    }
  }
  CUTLASS_DEVICE auto store_tail(LoadPipeline, LoadPipelineState load, StorePipeline, StorePipelineState store) {
    if constexpr (Config::kStoreStages > 0) cute::tma_store_wait<0>();
    return cute::make_tuple(load, store);
  }
};

}  // namespace coda
