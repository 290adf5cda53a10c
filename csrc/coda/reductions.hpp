#pragma once
// Nodes of classes 4 and 5: one partial for each output tile, in a fixed order, so that every run gives the same bits.
//
// A state absorbs values and merges with other states. Along a row: in registers across the tile's columns, then across the
// four lanes of a quad; one warp spans the tile's width. Along a column: over a thread's two rows and the eight lanes that
// share its columns in each subtile, then, at the end of the tile, over the warps through shared memory.
// What lies outside the problem is made neutral first.
#include "coda/fragment.hpp"
#include "coda/math.h"

namespace coda {

// Does something to each element that lies outside. `whole` says that none does, the same for a warp; the empty statement
// keeps the compiler from making it a condition of each element.
template <int N, class Inside, class Do>
CUTLASS_DEVICE void outside(float (&x)[N], bool whole, Inside const& inside, Do const& act) {
  if (whole) return;
  asm volatile("");
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; ++i)
    if (!inside(i)) act(x[i]);
}

struct SumState {
  float sum = 0.f;
  template <int N, class Inside>
  CUTLASS_DEVICE void absorb(float (&x)[N], bool whole, Inside const& inside) {
    outside(x, whole, inside, [](float& y) { y = 0.f; });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) sum += x[i];
  }
  CUTLASS_DEVICE void merge(SumState const& o) { sum += o.sum; }
  template <int kPart> CUTLASS_DEVICE float value() const { return sum; }
};

struct MaxState {
  float top = -infinity();
  template <int N, class Inside>
  CUTLASS_DEVICE void absorb(float (&x)[N], bool whole, Inside const& inside) {
    outside(x, whole, inside, [](float& y) { y = -infinity(); });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) top = maximum(top, x[i]);
  }
  CUTLASS_DEVICE void merge(MaxState const& o) { top = maximum(top, o.top); }
  template <int kPart> CUTLASS_DEVICE float value() const { return top; }
};

struct AbsMaxState {
  float top = 0.f;
  template <int N, class Inside>
  CUTLASS_DEVICE void absorb(float (&x)[N], bool whole, Inside const& inside) {
    outside(x, whole, inside, [](float& y) { y = 0.f; });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) top = maximum(top, fabsf(x[i]));
  }
  CUTLASS_DEVICE void merge(AbsMaxState const& o) { top = maximum(top, o.top); }
  template <int kPart> CUTLASS_DEVICE float value() const { return top; }
};

// Online softmax statistics (Milakov and Gimelshein, arXiv 1805.02867): the largest so far and Σ e^(x − largest).
struct LogSumExpState {
  float top = -infinity(), sum = 0.f;
  // What a power is taken relative to: not the largest itself while it is infinite, where the difference would be NaN.
  // Differences are taken before they are scaled: of numbers beyond 2.36e38, the multiple by log₂e is infinite.
  CUTLASS_DEVICE static float origin(float top) { return fabsf(top) == infinity() ? 0.f : top; }
  template <int N, class Inside>
  CUTLASS_DEVICE void absorb(float (&x)[N], bool whole, Inside const& inside) {
    outside(x, whole, inside, [](float& y) { y = -infinity(); });
    float most = top;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) most = fmaxf(most, x[i]);  // a NaN reaches the sum below
    const float at = origin(most);
    sum *= exp2_flush((top - at) * kLog2E);  // 0 while all were −inf; a NaN stays
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) sum += exp2_flush((x[i] - at) * kLog2E);
    top = most;
  }
  CUTLASS_DEVICE void merge(LogSumExpState const& o) {
    const float most = fmaxf(top, o.top), at = origin(most);
    sum = scaled(at) + o.scaled(at);
    top = most;
  }
  CUTLASS_DEVICE float scaled(float at) const {
    return top == -infinity() && sum == 0.f ? 0.f : sum * exp2_flush((top == infinity() ? 0.f : top - at) * kLog2E);
  }
  template <int kPart> CUTLASS_DEVICE float value() const { return __fmaf_rn(log2_approx(sum), kLn2, origin(top)); }
};

// Count, mean and Σ (x − mean)², merged as by Chan, Golub and LeVeque (1983).
struct WelfordState {
  float count = 0.f, mean = 0.f, m2 = 0.f;
  template <int N, class Inside>
  CUTLASS_DEVICE void absorb(float (&x)[N], bool whole, Inside const& inside) {
    WelfordState o{float(N)};
    outside(x, whole, inside, [&](float& y) { y = 0.f, o.count -= 1.f; });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) o.mean += x[i];
    if (o.count == 0.f) return;
    o.mean = divide(o.mean, o.count);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) x[i] -= o.mean;
    outside(x, whole, inside, [](float& y) { y = 0.f; });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) o.m2 += x[i] * x[i];
    merge(o);
  }
  CUTLASS_DEVICE void merge(WelfordState const& o) {
    const float total = count + o.count;
    if (o.count == 0.f || total == 0.f) return;
    const float d = o.mean - mean, share = divide(o.count, total);
    mean += fabsf(mean) == infinity() ? o.mean : d * share;  // the difference from an infinity would make it NaN
    m2 += o.m2 + d * d * count * share;
    count = total;
  }
  template <int kPart> CUTLASS_DEVICE float value() const { return kPart == 0 ? count : kPart == 1 ? mean : m2; }
};

// The state of the lane whose number differs in `mask`.
template <class State> CUTLASS_DEVICE State exchange(State s, int mask) {
  float* words = reinterpret_cast<float*>(&s);
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < int(sizeof(State) / 4); ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  return s;
}

// Stores a result, or adds it to what is there.
template <class T, bool kAdd> CUTLASS_DEVICE void put(T* at, float x) {
  *at = Format<T>::narrow(kAdd ? Format<T>::widen(*at) + x : x);
}

// Where the parts of a state go; a part that no output wants has no address.
template <class T> struct Target { T* data = nullptr; int64_t row_stride = 0, column_stride = 0; };

template <bool kAdd, int kPart = 0, class State, class T, int kParts>
CUTLASS_DEVICE void put_parts(Target<T> const (&targets)[kParts], State const& s, int row, int col) {
  auto const& t = targets[kPart];
  if (kParts == 1 || t.data) put<T, kAdd>(t.data + row * t.row_stride + col * t.column_stride, s.template value<kPart>());
  if constexpr (kPart + 1 < kParts) put_parts<kAdd, kPart + 1>(targets, s, row, col);
}

// f32[M, tiles(N)]
template <class Config, class State, class T, int W, int kParts, bool kAdd, auto kMember>
struct RowReduceCallbacks : Callbacks {
  struct Params { Target<T> targets[kParts]; };
  Params params;
  Tile tile;
  State state[2];
  CUTLASS_DEVICE RowReduceCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    auto const& x = in[0].*kMember;
    if (epi_n == 0) state[0] = state[1] = State{};
    const int first = first_column<Config, W>(tile, epi_n), end = width_of<W>(tile.n);
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      float values[kBlocks<Config> * W];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * W; ++i) values[i] = x[element<W>(h, i)];
      state[h].absorb(values, columns_inside<Config>(tile, epi_n),
                      [&](int i) { return first + offset<Config, W>(i) < end; });
    }
    if (epi_n == Config::kTileN / Config::kSub - 1) finish(epi_m);
    return 0;
  }
  CUTLASS_DEVICE void finish(int epi_m) {
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      state[h].merge(exchange(state[h], 1));
      state[h].merge(exchange(state[h], 2));
      const int r = tile.first_row(epi_m) + 8 * h;
      if (tile.quad() == 0 && r < tile.m && tile.n0 < tile.n) put_parts<kAdd>(params.targets, state[h], r, tile.col);
    }
  }
};
template <class Config, class State, class T, int W, int kParts, bool kAdd, auto kMember>
using RowReduce = Leaf<RowReduceCallbacks<Config, State, T, W, kParts, kAdd, kMember>>;

// f32[tiles(M), N], or of half or double width
template <class Config, class State, class T, int W, int kParts, bool kAdd, auto kMember>
struct ColumnReduceCallbacks : Callbacks {
  static constexpr int kColumns = Config::kTileN / 2 * W, kWarps = 4 * Config::kWarpgroups;
  static constexpr int kOwn = kBlocks<Config> * W;  // columns of a thread
  static constexpr int kLeft = kOwn >= 8 ? kOwn / 8 : 1;  // of them after the lanes have shared them out
  struct Params { Target<T> targets[kParts]; };
  struct Shared { State partial[kWarps][kColumns]; };
  Params params;
  Shared* shared;
  Tile tile;
  CUTLASS_DEVICE ColumnReduceCallbacks(Params const& p, Shared* s, Tile const& t) : params(p), shared(s), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    auto const& x = in[0].*kMember;
    const int r = tile.first_row(epi_m);
    State state[kOwn];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      float rows[2] = {x[element<W>(0, i)], x[element<W>(1, i)]};
      state[i].absorb(rows, rows_inside(tile, epi_m), [&](int h) { return r + 8 * h < tile.m; });
    }
    int from = 0;
    share<kOwn, 16>(state, from);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLeft; ++i) {
      const int column = first_column<Config, W>(tile, epi_n) - tile.n0 / 2 * W + offset<Config, W>(from + i);
      State& at = shared->partial[tile.thread / 32][column];
      if (epi_m < Config::kWarpgroups) at = state[i];
      else at.merge(state[i]);  // the next 64 rows of the same warp
    }
    return 0;
  }
  // Eight lanes share these columns. Each step gives half of them away and takes in the partner's other half; the lower
  // lane's rows come first on both sides.
  template <int kLive, int kMask> CUTLASS_DEVICE void share(State (&state)[kOwn], int& from) const {
    const bool upper = tile.lane & kMask;
    constexpr int kHalf = kLive > 1 ? kLive / 2 : 1;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      State low = state[i], high = state[kLive > 1 ? i + kHalf : i];
      const State other = exchange(upper ? low : high, kMask);
      State mine = upper ? high : low;
      if (upper) { state[i] = other; state[i].merge(mine); }
      else { state[i] = mine; state[i].merge(other); }
    }
    if (kLive > 1 && upper) from += kHalf;
    if constexpr (kMask > 4) share<kHalf, kMask / 2>(state, from);
  }
  CUTLASS_DEVICE void end() {
    constexpr int kThreads = 128 * Config::kWarpgroups;
    cutlass::arch::NamedBarrier::sync(kThreads, 0);
    for (int c = tile.thread; c < kColumns; c += kThreads) {
      State total = shared->partial[0][c];
      CUTLASS_PRAGMA_UNROLL
      for (int w = 1; w < kWarps; ++w) total.merge(shared->partial[w][c]);
      const int n = tile.n0 / 2 * W + c;
      if (n < width_of<W>(tile.n) && tile.m0 < tile.m) put_parts<kAdd>(params.targets, total, tile.row, n);
    }
    cutlass::arch::NamedBarrier::sync(kThreads, 0);  // before the next tile writes there
  }
};
template <class Config, class State, class T, int W, int kParts, bool kAdd, auto kMember>
using ColumnReduce = Leaf<ColumnReduceCallbacks<Config, State, T, W, kParts, kAdd, kMember>>;

// f32[M, H]: Σ over each run of D columns. D is a multiple of a block's columns and divides the tile's; a block is in one.
template <class Config, class T, int W, bool kAdd, auto kMember>
struct SegmentCallbacks : Callbacks {
  struct Params { T* data; int64_t row_stride, column_stride; int period; };
  Params params;
  Tile tile;
  float sum[2];
  int filled, head;
  static_assert(Config::kRun == 1);
  CUTLASS_DEVICE SegmentCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    auto const& x = in[0].*kMember;
    if (epi_n == 0) {
      sum[0] = sum[1] = 0.f;
      filled = 0;
      head = tile.n0 / 2 * W / params.period;
    }
    const int heads = width_of<W>(tile.n) / params.period;
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < kBlocks<Config>; ++k) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * W; ++i) sum[i / W] += x[k * 2 * W + i];
      filled += 4 * W;
      if (filled < params.period) continue;
      CUTLASS_PRAGMA_UNROLL
      for (int h = 0; h < 2; ++h) {
        float total = sum[h];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const int r = tile.first_row(epi_m) + 8 * h;
        if (tile.quad() == 0 && r < tile.m && head < heads)
          put<T, kAdd>(params.data + r * params.row_stride + head * params.column_stride, total);
        sum[h] = 0.f;
      }
      filled = 0;
      ++head;
    }
    return 0;
  }
};
template <class Config, class T, int W, bool kAdd, auto kMember>
using SegmentSum = Leaf<SegmentCallbacks<Config, T, W, kAdd, kMember>>;

// x[m, index[m]], stored by the tile that holds the column; the first tile stores 0 where the index is to be ignored and
// NaN where it is outside. kIndex is the member with the index of each row, kIgnore that with the one to ignore.
template <class Config, class T, int W, bool kAdd, auto kMember, auto kIndex, auto kIgnore>
struct PickCallbacks : Callbacks {
  struct Params { T* data; int64_t stride; };
  Params params;
  Tile tile;
  CUTLASS_DEVICE PickCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    auto const& x = in[0].*kMember;
    auto const& index = in[0].*kIndex;
    const int first = first_column<Config, W>(tile, epi_n), end = width_of<W>(tile.n);
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = tile.first_row(epi_m) + 8 * h;
      if (r >= tile.m) continue;
      const int64_t wanted = index[h];
      bool ignored = false;
      if constexpr (!cute::is_same_v<decltype(kIgnore), decltype(nullptr)>) ignored = wanted == (in[0].*kIgnore)[h];
      const bool outside = uint64_t(wanted) >= uint64_t(end);
      if (ignored || outside) {
        if (tile.col == 0 && epi_n == 0 && tile.quad() == 0) put<T, kAdd>(params.data + r * params.stride, ignored ? 0.f : nan());
        continue;
      }
      // Is the index in this subtile, and in one of this lane's runs?
      constexpr int kOwn = Config::kRun * W;
      const int64_t at = wanted - first;
      if (at < 0 || at >= kBlocks<Config> * 4 * W || at % (4 * kOwn) >= kOwn) continue;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * W; ++i)
        if (int(at) == offset<Config, W>(i)) put<T, kAdd>(params.data + r * params.stride, x[element<W>(h, i)]);
    }
    return 0;
  }
};
template <class Config, class T, int W, bool kAdd, auto kMember, auto kIndex, auto kIgnore>
using Pick = Leaf<PickCallbacks<Config, T, W, kAdd, kMember, kIndex, kIgnore>>;

}  // namespace coda
