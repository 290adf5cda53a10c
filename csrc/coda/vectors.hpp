#pragma once
// Nodes of class 2: scalars on the device, row and column vectors, head-wise vectors, and their stores.
#include "coda/fragment.hpp"
#include "coda/math.h"

namespace coda {

// Where a column of the tile lies in a tensor: itself, n mod D (the same in every head), or n div D (one for each head).
enum class Columns { kWhole, kInner, kOuter };

// Follows a column from head to head, without a division for each step.
struct Heads {
  int period, head, at;  // column = head·period + at, at < period
  CUTLASS_DEVICE Heads() {}
  CUTLASS_DEVICE Heads(int column, int period) : period(period), head(column / period), at(column - head * period) {}
  CUTLASS_DEVICE void advance(int step) {
    at += step;
    if (period < step) {  // the same for all threads
      CUTLASS_PRAGMA_NO_UNROLL
      for (; at >= period; at -= period) ++head;
    } else {
      const bool next = at >= period;
      at -= next ? period : 0;
      head += next;
    }
  }
  CUTLASS_DEVICE Heads after(int c) const {
    Heads moved = *this;
    if (c) moved.advance(c);
    return moved;
  }
  CUTLASS_DEVICE int column_of(int c) const { return after(c).at; }
  CUTLASS_DEVICE int head_of(int c) const { return after(c).head; }
};

// The columns of a thread in a subtile, one run of W in each block, mapped into a tensor.
template <class Config, int W, Columns kMap>
struct Walk {
  int first, block = 0;
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
    const int columns = step<Config, W>(block++);
    first += columns;
    if (kMap != Columns::kWhole) heads.advance(columns);
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

// [N], [N/2], [2N], [D] or [H]: values for the thread's columns; columns past the end read nothing and are 0. kAligned says that
// neighbours lie side by side and a run of W of them is aligned.
template <class Config, class T, int W, Columns kMap, bool kAligned>
struct RowCallbacks : Callbacks {
  struct Params { T const* data; int64_t stride; int period; };  // period: D, in columns of this width
  Params params;
  Tile tile;
  Values<Wide<T>, kBlocks<Config> * W> value;
  CUTLASS_DEVICE RowCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  CUTLASS_DEVICE void begin_loop(int, int epi_n) {
    Walk<Config, W, kMap> walk(tile, epi_n, params.period);
    if (kAligned && columns_inside<Config>(tile, epi_n)) {
      auto const* runs = reinterpret_cast<Run<T, W> const*>(params.data + walk.first);
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < kBlocks<Config>; ++k) {
        const Run<T, W> run = runs[offset<Config, W>(k * W) / W];
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < W; ++c) value[k * W + c] = Format<T>::widen(run.v[c]);
      }
      return;
    }
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
template <class Config, class T, int W, Columns kMap, bool kAligned> using Row = Leaf<RowCallbacks<Config, T, W, kMap, kAligned>>;

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

// NaN in every floating-point type: what stands for the columns of a subtile in a row outside a table.
struct NanRow {
  static constexpr int kBytes = 512;  // of a subtile of 64 columns, at double width, in f32
  alignas(16) uint32_t words[kBytes / 4];
  constexpr NanRow() : words() {
    for (uint32_t& word : words) word = ~0u;
  }
};
static __device__ NanRow nan_row;

// A row of a table: its address in global memory, and the bytes from one column to the next. An index outside the table has the
// address of `nan_row` and 0 bytes: every column is NaN without a branch. The empty statement hides where the address comes from,
// which the compiler would compute anew for each element.
template <class T>
struct TableRow {
  uint64_t row;
  uint32_t step;
  CUTLASS_DEVICE TableRow() {}
  CUTLASS_DEVICE TableRow(T const* table, int64_t stride, int rows, int64_t index) {
    const bool inside = uint64_t(index) < uint64_t(rows);
    row = __cvta_generic_to_global(inside ? static_cast<void const*>(table + index * stride) : &nan_row);
    step = inside ? sizeof(T) : 0;
    asm volatile("" : "+l"(row));
  }
  // A column number is never negative; one times a stride may be.
  CUTLASS_DEVICE T const* at(int column) const { return past(uint64_t(uint32_t(column)) * step); }
  CUTLASS_DEVICE T const* at(int64_t distance) const { return past(uint64_t(distance) * step); }
  template <class Column>
  CUTLASS_DEVICE float operator[](Column column) const { return Format<T>::widen(*at(column)); }

 private:
  CUTLASS_DEVICE T const* past(uint64_t bytes) const { return static_cast<T const*>(__cvta_global_to_generic(row + bytes)); }
};

// The thread's first column of a subtile, in a row of a table, where all that the thread reads there lies in one head: the other
// columns are constant distances on. Outside the table it stays at the first of `nan_row`.
template <class T>
struct TableCursor {
  T const* from;
  CUTLASS_DEVICE TableCursor() {}
  CUTLASS_DEVICE TableCursor(TableRow<T> const& row, int column) : from(row.at(column)) {}
  CUTLASS_DEVICE void move(int columns) {
    if (from != reinterpret_cast<T const*>(&nan_row)) from += columns;
  }
  CUTLASS_DEVICE float operator[](int column) const { return Format<T>::widen(from[column]); }
};

// N aligned neighbours of a row, widened.
template <class T, int N>
struct TableRun {
  Values<float, N> value;
  CUTLASS_DEVICE void read(T const* from) {
    constexpr int kRead = N * int(sizeof(T)) / int(sizeof(Word<T, N>));
    Word<T, N> found[kRead];
    read_run<kRead>(found, reinterpret_cast<Word<T, N> const*>(from));
    widen_run<T, N>(found, [&](int i, float x) { value[i] = x; });
  }
};

}  // namespace coda
