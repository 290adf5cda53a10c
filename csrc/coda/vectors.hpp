#pragma once
// Nodes of class 2: scalars on the device, row and column vectors, head-wise vectors, and their stores.
#include "coda/fragment.hpp"

namespace coda {

// Where a column of the tile lies in a tensor: itself, n mod D (the same in every head), or n div D (one for each head).
enum class Columns { kWhole, kInner, kOuter };

// Follows a column from head to head without a division for each step.
struct Heads {
  int period, head, at;  // column = head·period + at
  CUTLASS_DEVICE Heads(int column, int period) : period(period), head(column / period), at(column - head * period) {}
  CUTLASS_DEVICE void advance(int step) {
    at += step;
    if (at < period) return;
    at -= period;
    ++head;
    if (at < period) return;  // else heads are narrower than a step
    head += at / period;
    at %= period;
  }
  CUTLASS_DEVICE int column_of(int c) const { return at + c < period ? at + c : (at + c) % period; }
  CUTLASS_DEVICE int head_of(int c) const { return at + c < period ? head : head + (at + c) / period; }
};

// The columns of a thread in a subtile, one run of W in each block, mapped into a tensor.
template <class Config, int W, Columns kMap>
struct Walk {
  int first;
  Heads heads;
  CUTLASS_DEVICE Walk(Tile const& tile, int epi_n, int period)
      : first(first_column<Config, W>(tile, epi_n)), heads(kMap == Columns::kWhole ? 0 : first, kMap == Columns::kWhole ? 1 : period) {}
  CUTLASS_DEVICE int column(int c) const { return first + c; }
  CUTLASS_DEVICE int mapped(int c) const {
    return kMap == Columns::kWhole ? first + c : kMap == Columns::kInner ? heads.column_of(c) : heads.head_of(c);
  }
  // Whether this column is the one that writes what several columns share.
  CUTLASS_DEVICE bool writes(int c) const {
    return kMap == Columns::kWhole || (kMap == Columns::kInner ? heads.head_of(c) == 0 : heads.column_of(c) == 0);
  }
  CUTLASS_DEVICE void next() {
    first += 4 * W;
    if (kMap != Columns::kWhole) heads.advance(4 * W);
  }
};

template <class T>
struct ScalarCallbacks : Callbacks {
  struct Params { T const* data; };
  Wide<T> value;
  CUTLASS_DEVICE ScalarCallbacks(Params const& p, None*, Tile const&) : value(Format<T>::widen(*p.data)) {}
  template <class E, int F>
  CUTLASS_DEVICE Values<Wide<T>, 1> visit(cutlass::Array<E, F> const&, int, int, int) { return {{value}}; }
};
template <class T> using Scalar = Leaf<ScalarCallbacks<T>>;

// [M]: one value for each row; rows past the end read nothing and are 0.
template <class T>
struct ColumnCallbacks : Callbacks {
  struct Params { T const* data; int64_t stride; };
  Params params;
  Tile tile;
  Values<Wide<T>, 2> value;
  CUTLASS_DEVICE ColumnCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  CUTLASS_DEVICE void begin_loop(int epi_m, int epi_n) {
    if (epi_n) return;
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = tile.first_row(epi_m) + 8 * h;
      value[h] = r < tile.m ? Format<T>::widen(params.data[r * params.stride]) : Wide<T>(0);
    }
  }
  template <class E, int F>
  CUTLASS_DEVICE Values<Wide<T>, 2> visit(cutlass::Array<E, F> const&, int, int, int) { return value; }
};
template <class T> using Column = Leaf<ColumnCallbacks<T>>;

// [N], [N/2], [2N], [D] or [H]: values for the thread's columns; columns past the end read nothing and are 0.
template <class Config, class T, int W, Columns kMap>
struct RowCallbacks : Callbacks {
  struct Params { T const* data; int64_t stride; int period; };  // period: D, in columns of this width
  Params params;
  Tile tile;
  Values<Wide<T>, kBlocks<Config> * W> value;
  CUTLASS_DEVICE RowCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  CUTLASS_DEVICE void begin_loop(int, int epi_n) {
    Walk<Config, W, kMap> walk(tile, epi_n, params.period);
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < kBlocks<Config>; ++k, walk.next()) {
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < W; ++c) {
        const bool inside = walk.column(c) < width_of<W>(tile.n);
        value[k * W + c] = inside ? Format<T>::widen(params.data[walk.mapped(c) * params.stride]) : Wide<T>(0);
      }
    }
  }
  template <class E, int F>
  CUTLASS_DEVICE auto const& visit(cutlass::Array<E, F> const&, int, int, int) { return value; }
};
template <class Config, class T, int W, Columns kMap> using Row = Leaf<RowCallbacks<Config, T, W, kMap>>;

// Stores of what does not vary along a row or along a column: by the first tile there, and in it by the first column or row.
template <class T, auto kMember>
struct ColumnStoreCallbacks : Callbacks {
  struct Params { T* data; int64_t stride; };
  Params params;
  Tile tile;
  CUTLASS_DEVICE ColumnStoreCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    if (epi_n || tile.col || tile.quad()) return 0;
    auto const& x = in[0].*kMember;
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = tile.first_row(epi_m) + 8 * h;
      if (r < tile.m) params.data[r * params.stride] = Format<T>::narrow(x[h]);
    }
    return 0;
  }
};
template <class T, auto kMember> using ColumnStore = Leaf<ColumnStoreCallbacks<T, kMember>>;

template <class Config, class T, int W, Columns kMap, auto kMember>
struct RowStoreCallbacks : Callbacks {
  struct Params { T* data; int64_t stride; int period; };
  Params params;
  Tile tile;
  CUTLASS_DEVICE RowStoreCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    if (epi_m || tile.row || tile.warp || tile.lane >= 4) return 0;
    auto const& x = in[0].*kMember;
    Walk<Config, W, kMap> walk(tile, epi_n, params.period);
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < kBlocks<Config>; ++k, walk.next()) {
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < W; ++c) {
        if (walk.column(c) < width_of<W>(tile.n) && walk.writes(c))
          params.data[walk.mapped(c) * params.stride] = Format<T>::narrow(x[k * W + c]);
      }
    }
    return 0;
  }
};
template <class Config, class T, int W, Columns kMap, auto kMember>
using RowStore = Leaf<RowStoreCallbacks<Config, T, W, kMap, kMember>>;

// An index as a column number: −1 where it is no column at all.
CUTLASS_DEVICE int column_index(int64_t index) { return index == int(index) ? int(index) : -1; }

// table[index, column]; NaN where the index is outside the table.
template <class T>
CUTLASS_DEVICE float gather(T const* table, int64_t row_stride, int64_t column_stride, int rows, int64_t index, int column) {
  T const* row = table + index * row_stride;
  return uint64_t(index) < uint64_t(rows) ? Format<T>::widen(row[column * column_stride]) : __int_as_float(0x7fffffff);
}

}  // namespace coda
