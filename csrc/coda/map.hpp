#pragma once
// A map: the same nodes without a product. One block of four warps for each 64-row tile; the accumulator is absent.
#include "coda/prelude.h"
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/pipeline/pipeline.hpp"
#include "coda/epilogue.hpp"
#include "coda/launch.h"

namespace coda {

template <class Config, class Tree>
CUTLASS_DEVICE void run_map(int m, int n, typename Tree::Params const& params) {
  extern __shared__ __align__(1024) char smem[];
  after_earlier_grids();
  const int columns = (n + Config::kTileN - 1) / Config::kTileN;
  const int row = int(blockIdx.x) / columns, col = int(blockIdx.x) % columns, thread = threadIdx.x;
  const Tile tile{row * Config::kTileM, col * Config::kTileN, m, n, row, col, thread / 32, thread % 32, thread};
  using Driver = Epilogue<Config, Tree>;
  Driver driver({params}, *reinterpret_cast<typename Driver::TensorStorage*>(smem));
  float nothing[Config::kTileM / 64 * Config::kTileN / 2];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < Config::kTileM / 64 * Config::kTileN / 2; ++i) nothing[i] = 0.f;
  driver.walk(tile, nothing, [](auto&, int, int) {});
}

}  // namespace coda
