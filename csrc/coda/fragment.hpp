#pragma once
// What a thread holds of an output tile, and the base of all nodes.
//
// The epilogue walks a tile in subtiles of 64 rows and `kSub` columns, one 64-row atom of wgmma after the other. Thread t of
// a warpgroup owns rows 16·(t/32) + (t%32)/4 and that plus 8, and of every 8 accumulator columns 2·(t%4) and the next:
// a pair (2j, 2j + 1) never leaves its thread. A value of half or double width has 1 or 4 columns there.
// A fragment of width W ∈ {1, 2, 4} lists them as [block of 8 accumulator columns][row, row + 8][W columns].
//
// That is with a `kRun` of 1. With one of kSub/8 a thread has a quarter of the subtile's columns side by side, those from
// kSub/4·(t%4) on, and reads or writes 16 bytes of a row at once: where no wgmma says which columns are whose, and where b's rows
// are loaded in the order that makes wgmma say so (`tma_load_groups`). Sums over heads must not part a block: `kRun` is 1 there.
//
// A value that does not vary along a row or a column is not spread: a scalar is Values<T, 1>, a column vector [2], a
// row vector [blocks][W]. The generated compute node indexes each as it is.
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"
#include "coda/tensormap.h"
#include "coda/types.h"

namespace coda {
namespace fusion = cutlass::epilogue::fusion;

// The tile a block works on, in place of CuTe's partitioned coordinate tensors.
struct Tile {
  int m0, n0;        // first row and column
  int m, n;          // the accumulator's extents
  int row, col;      // index of the tile
  int warp, lane;    // of the thread in its warpgroup, and in its warp
  int thread;        // among those that share the tile

  // The first of the thread's two rows in the 64-row block `epi_m`.
  CUTLASS_DEVICE int first_row(int epi_m) const { return m0 + epi_m * 64 + warp * 16 + (lane >> 2); }
  CUTLASS_DEVICE int quad() const { return lane & 3; }
};

template <class Config> constexpr int kBlocks = Config::kSub / 8;  // of 8 accumulator columns in a subtile

// The thread's first column of a value of width W in a subtile; its column i is first + offset(i), and from that of block k
// to that of the next it is step(k).
template <class Config, int W>
CUTLASS_DEVICE int first_column(Tile const& tile, int epi_n) {
  return (tile.n0 + epi_n * Config::kSub) / 2 * W + tile.quad() * (Config::kRun * W);
}
template <class Config, int W> CUTLASS_HOST_DEVICE constexpr int offset(int i) {
  constexpr int kOwn = Config::kRun * W;
  return i / kOwn * (4 * kOwn) + i % kOwn;
}
template <class Config, int W> CUTLASS_HOST_DEVICE constexpr int step(int k) {
  return offset<Config, W>((k + 1) * W) - offset<Config, W>(k * W);
}
// Where the thread's column i of row h (0, or 1 for the row 8 further on) is in a fragment of width W.
template <int W> CUTLASS_HOST_DEVICE constexpr int element(int h, int i) { return (i / W * 2 + h) * W + i % W; }
template <int W> CUTLASS_DEVICE int width_of(int n) { return W == 2 ? n : W == 1 ? n / 2 : n * 2; }

// Whether all columns of a subtile, or all rows of a 64-row block, are the problem's: the same for a warp, so that what
// a ragged edge takes costs one branch elsewhere.
template <class Config> CUTLASS_DEVICE bool columns_inside(Tile const& tile, int epi_n) {
  return tile.n0 + (epi_n + 1) * Config::kSub <= tile.n;
}
CUTLASS_DEVICE bool rows_inside(Tile const& tile, int epi_m) { return tile.m0 + (epi_m + 1) * 64 <= tile.m; }

struct None {};

// A node from its callbacks C: C::Params, C::Shared, the constructor C(Params, Shared*, Tile) and CUTLASS's consumer
// callbacks; a node that loads by TMA also has C::Producer.
template <class C>
struct Leaf {
  using SharedStorage = typename C::Shared;
  using Params = typename C::Params;
  using Arguments = Params;
  Params params;
  SharedStorage* shared;
  CUTLASS_DEVICE Leaf() {}
  CUTLASS_DEVICE Leaf(Params const& p, SharedStorage const& s) : params(p), shared(const_cast<SharedStorage*>(&s)) {}
  CUTLASS_DEVICE bool is_producer_load_needed() const { return C::kProducer; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }
  template <class... A>
  CUTLASS_DEVICE auto get_producer_load_callbacks(fusion::ProducerLoadArgs<A...> const& args) {
    if constexpr (C::kProducer) return typename C::Producer{{}, params, shared, args.tile_coord_mnkl};
    else return fusion::EmptyProducerLoadCallbacks{};
  }
  template <bool, class... A>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<A...> const& args) {
    return C(params, shared, args.tile_coord_mnkl);
  }
};

struct Callbacks : fusion::EmptyConsumerStoreCallbacks {
  static constexpr bool kProducer = false;
  using Shared = None;
};

// The accumulator itself.
template <class Config>
struct AccumulatorCallbacks : Callbacks {
  using Params = None;
  CUTLASS_DEVICE AccumulatorCallbacks(Params const&, None*, Tile const&) {}
  template <class E, int F>
  CUTLASS_DEVICE auto visit(cutlass::Array<E, F> const& acc, int, int, int) { return acc; }
};
template <class Config> using Accumulator = Leaf<AccumulatorCallbacks<Config>>;

}  // namespace coda
