#pragma once
// Nodes of class 3: tiles of full, half and double width, loaded and stored.
//
// Beside a product TMA moves aligned tiles through shared memory: loads by the producer warp, 64 rows at a time for each
// warpgroup; stores by each warp for its own 16 rows, so that no warp waits for another. Rows lie in boxes of at most 128 bytes,
// swizzled as TMA does, so that neither side has bank conflicts to speak of. Everything else moves by the threads: up to 16
// bytes at a time where runs are aligned and the subtile is whole, else by guarded elements.
#include "coda/vectors.hpp"

namespace coda {

template <class Config, class T, int W>
struct Staging {
  static constexpr int kColumns = Config::kSub / 2 * W;                        // of a subtile
  static constexpr int kRowBytes = kColumns * int(sizeof(T));
  static constexpr int kBoxBytes = kRowBytes < 128 ? kRowBytes : 128;          // of a row of a box
  static constexpr int kBoxes = kRowBytes / kBoxBytes;
  static constexpr int kBoxColumns = kBoxBytes / int(sizeof(T));

  // The address of byte `own` + `step` of row `r` of a subtile whose boxes have kRows rows. TMA's swizzle exchanges the 16-byte
  // chunks of a 128-byte line by the line's number, modulo the chunks of a box's row: rows r and r + 8 agree, so the caller adds
  // 8 rows by themselves. `base` is a multiple of kBoxBytes; `own` is the thread's, below kBoxBytes, and shares no bit with the
  // constant `step`. So a step changes bits that are 0 but for the swizzle: one exclusive or.
  template <int kRows>
  CUTLASS_DEVICE static uint32_t at(uint32_t base, int r, int own, int step) {
    const uint32_t line = r * kBoxBytes >> 7, thread = base + r * kBoxBytes + (own ^ ((line & (kBoxBytes / 16 - 1)) << 4));
    return (thread ^ (step % kBoxBytes)) + step / kBoxBytes * (kRows * kBoxBytes);
  }

  // With runs a thread has kOwnBytes of a row side by side, which it moves in pieces, by address and number.
  static_assert(Config::kRun == 1 || Config::kRun == kBlocks<Config>);
  static constexpr int kOwn = Config::kRun * W, kOwnBytes = kOwn * int(sizeof(T));
  static constexpr int kPieceBytes = kOwnBytes < 16 ? kOwnBytes : 16, kPieces = kOwnBytes / kPieceBytes;
  template <int kRows>
  CUTLASS_DEVICE static uint32_t piece(uint32_t base, int r, int quad, int i) {
    const int own = quad * kOwnBytes;
    return at<kRows>(base + own / kBoxBytes * (kRows * kBoxBytes), r, own % kBoxBytes, i * kPieceBytes);
  }
};

template <class R> CUTLASS_DEVICE R load_shared(uint32_t address) {
  return *reinterpret_cast<R const*>(__cvta_shared_to_generic(address));
}
template <class R> CUTLASS_DEVICE void store_shared(uint32_t address, R const& x) {
  *reinterpret_cast<R*>(__cvta_shared_to_generic(address)) = x;
}
CUTLASS_DEVICE void stmatrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
CUTLASS_DEVICE void ldmatrix(uint32_t address, uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(address) : "memory");
}
// The row of 16, and the 16-byte chunk of two, that lane l addresses for an x4 of matrices (row, row + 8) × (k, k + 8).
CUTLASS_DEVICE int matrix_row(int lane) { return (lane & 7) + ((lane >> 3) & 1) * 8; }
CUTLASS_DEVICE int matrix_chunk(int lane) { return lane >> 4; }

// -- loads -------------------------------------------------------------------------------------------------------------

template <class Config, class T, int W>
struct TileCallbacks : Callbacks {
  using S = Staging<Config, T, W>;
  static constexpr bool kProducer = true;
  struct Params { TensorMap const* map; };
  struct Shared { alignas(1024) uint8_t stage[Config::kLoadStages][Config::kWarpgroups][64 * S::kRowBytes]; };
  static constexpr int kBytes = Config::kWarpgroups * 64 * S::kRowBytes;  // of one stage, that the barrier counts

  struct Producer : fusion::EmptyProducerLoadCallbacks {
    Params params;
    Shared* shared;
    Tile tile;
    CUTLASS_DEVICE Producer(fusion::EmptyProducerLoadCallbacks const&, Params const& p, Shared* s, Tile const& t)
        : params(p), shared(s), tile(t) {}
    CUTLASS_DEVICE void step(uint64_t* barrier, int epi_m, int epi_n, int stage, bool) {
      CUTLASS_PRAGMA_UNROLL
      for (int g = 0; g < Config::kWarpgroups; ++g) {
        CUTLASS_PRAGMA_UNROLL
        for (int box = 0; box < S::kBoxes; ++box) {
          tma_load<false, true>(params.map, barrier, 0, shared->stage[stage][g] + box * (64 * S::kBoxBytes),
                          (tile.n0 + epi_n * Config::kSub) / 2 * W + box * S::kBoxColumns, tile.m0 + (epi_m + g) * 64);
        }
      }
    }
  };

  uint32_t base;
  Tile tile;
  Values<float, kBlocks<Config> * 2 * W> value;
  CUTLASS_DEVICE TileCallbacks(Params const&, Shared* s, Tile const& t) : base(cute::cast_smem_ptr_to_uint(s)), tile(t) {}
  CUTLASS_DEVICE void previsit(int epi_m, int, int stage, bool) {
    const uint32_t from = base + (stage * Config::kWarpgroups + epi_m % Config::kWarpgroups) * (64 * S::kRowBytes);
    if constexpr (Config::kRun > 1) {
      constexpr int kMany = S::kPieceBytes / int(sizeof(T));
      using Part = Word<T, kMany>;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * S::kPieces; ++i) {
        const int h = i / S::kPieces, first = i % S::kPieces * kMany;
        const uint32_t place = S::template piece<64>(from, tile.warp * 16 + (tile.lane >> 2), tile.quad(), i % S::kPieces);
        const auto run = load_shared<Run<Part, S::kPieceBytes / int(sizeof(Part))>>(place + h * (8 * S::kBoxBytes));
        widen_run<T, kMany>(run.v, [&](int c, float x) { value[element<W>(h, first + c)] = x; });
      }
    } else if constexpr (sizeof(T) == 2 && W == 2) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBlocks<Config> / 2; ++j) {
        uint32_t v[4];
        ldmatrix(S::template at<64>(from, tile.warp * 16 + matrix_row(tile.lane), matrix_chunk(tile.lane) * 16, j * 32), v);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          value[j * 8 + i * 2] = Halves<T>::low(v[i]);
          value[j * 8 + i * 2 + 1] = Halves<T>::high(v[i]);
        }
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * 2; ++i) {
        constexpr int kBytes = W * int(sizeof(T));
        const int row = tile.warp * 16 + (tile.lane >> 2);
        const uint32_t place = S::template at<64>(from, row, tile.quad() * kBytes, (i >> 1) * 4 * kBytes);
        const auto run = load_shared<Run<Word<T, W>, kBytes / int(sizeof(Word<T, W>))>>(place + (i & 1) * (8 * S::kBoxBytes));
        widen_run<T, W>(run.v, [&](int c, float x) { value[i * W + c] = x; });
      }
    }
  }
  template <class E, int F>
  CUTLASS_DEVICE auto const& visit(cutlass::Array<E, F> const&, int, int, int) { return value; }
};
template <class Config, class T, int W> using TileLoad = Leaf<TileCallbacks<Config, T, W>>;

// Any strides and any alignment, unless kAligned says that what lies side by side in a thread is aligned. Also [M, D] and [M, H].
template <class Config, class T, int W, Columns kMap, bool kAligned>
struct DirectTileCallbacks : Callbacks {
  struct Params { T const* data; int64_t row_stride, column_stride; int period; };
  Params params;
  Tile tile;
  Values<Wide<T>, kBlocks<Config> * 2 * W> value;
  CUTLASS_DEVICE DirectTileCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  CUTLASS_DEVICE void begin_loop(int epi_m, int epi_n) {
    if constexpr (kAligned) {
      if (columns_inside<Config>(tile, epi_n)) return whole(epi_m, epi_n);
    }
    Walk<Config, W, kMap> walk(tile, epi_n, params.period);
    const int end = width_of<W>(tile.n);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBlocks<Config> * 2; ++i) {
      if (i && !(i & 1)) walk.next();
      const int r = tile.first_row(epi_m) + 8 * (i & 1), n = walk.column(0);
      T const* at = params.data + r * params.row_stride;
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < W; ++c) {
        const bool inside = r < tile.m && n + c < end;
        value[i * W + c] = inside ? Format<T>::widen(at[walk.mapped(c) * params.column_stride]) : Wide<T>(0);
      }
    }
  }
  CUTLASS_DEVICE void whole(int epi_m, int epi_n) {
    constexpr int kOwn = Config::kRun * W;
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = tile.first_row(epi_m) + 8 * h;
      T const* at = params.data + r * params.row_stride + first_column<Config, W>(tile, epi_n);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBlocks<Config> * W; j += kOwn) {
        constexpr int kRead = kOwn * int(sizeof(T)) / int(sizeof(Word<T, kOwn>));
        Word<T, kOwn> run[kRead] = {};
        if (r < tile.m) read_run<kRead>(run, reinterpret_cast<Word<T, kOwn> const*>(at + offset<Config, W>(j)));
        widen_run<T, kOwn>(run, [&](int i, Wide<T> x) { value[element<W>(h, j + i)] = x; });
      }
    }
  }
  template <class E, int F>
  CUTLASS_DEVICE auto const& visit(cutlass::Array<E, F> const&, int, int, int) { return value; }
};
template <class Config, class T, int W, Columns kMap, bool kAligned>
using DirectTile = Leaf<DirectTileCallbacks<Config, T, W, kMap, kAligned>>;

// -- stores ------------------------------------------------------------------------------------------------------------

template <class Config, class T, int W, auto kMember>
struct TileStoreCallbacks : Callbacks {
  using S = Staging<Config, T, W>;
  struct Params { TensorMap const* map; };
  struct Shared { alignas(1024) uint8_t stage[4 * Config::kWarpgroups][Config::kStoreStages][16 * S::kRowBytes]; };
  static constexpr bool kRuns = Config::kRun > 1;
  // One word for two neighbours of a row; for a half-width value of 16 bits, for columns of two blocks (see below).
  static constexpr bool kMatrix = !kRuns && sizeof(T) == 2 && W == 2, kHalf = !kRuns && sizeof(T) == 2 && W == 1;

  Params params;
  uint8_t* shared;
  Tile tile;
  alignas(16) Values<Run<T, W>, kBlocks<Config> * 2> runs;  // kRuns, kHalf: see below
  CUTLASS_DEVICE TileStoreCallbacks(Params const& p, Shared* s, Tile const& t)
      : params(p), shared(s->stage[t.thread / 32][0]), tile(t) {}

  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int, int) {
    auto const& x = in[0].*kMember;
    if constexpr (kRuns) {  // a row's, then the other's
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * S::kOwn; i += 2) {
        const int h = i / S::kOwn, c = i % S::kOwn;
        auto* pairs = reinterpret_cast<typename Format<T>::Pair*>(&runs);
        pairs[i / 2] = Format<T>::narrow2(x[element<W>(h, c)], x[element<W>(h, c + 1)]);
      }
    } else if constexpr (kHalf) {
      // The lane has column 4k + q of blocks k = 2j and 2j + 1. Neighbours q and q ^ 1 exchange one each, so that even lanes
      // hold two neighbouring columns of the first block and odd lanes of the second.
      const bool odd = tile.lane & 1;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config>; ++i) {
        const int k = i & ~1, h = i & 1;
        const uint32_t mine = Format<T>::narrow2(x[k * 2 + h], x[k * 2 + 2 + h]);
        const uint32_t theirs = __shfl_xor_sync(0xffffffffu, mine, 1);
        reinterpret_cast<uint32_t*>(&runs)[i] = __byte_perm(mine, theirs, odd ? 0x3276 : 0x5410);
      }
    } else if constexpr (W == 1) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * 2; ++i) runs[i].v[0] = Format<T>::narrow(x[i]);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * W; ++i)
        reinterpret_cast<typename Format<T>::Pair*>(&runs)[i] = Format<T>::narrow2(x[i * 2], x[i * 2 + 1]);
    }
    return 0;
  }
  CUTLASS_DEVICE void postreduce(int, int, int stage, bool) {
    const uint32_t to = cute::cast_smem_ptr_to_uint(shared) + stage * (16 * S::kRowBytes);
    uint32_t const* words = reinterpret_cast<uint32_t const*>(&runs);
    if constexpr (kRuns) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * S::kPieces; ++i) {
        constexpr int kMany = S::kPieceBytes / 4;
        Run<uint32_t, kMany> piece;
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < kMany; ++c) piece.v[c] = words[i * kMany + c];
        const uint32_t place = S::template piece<16>(to, tile.lane >> 2, tile.quad(), i % S::kPieces);
        store_shared(place + i / S::kPieces * (8 * S::kBoxBytes), piece);
      }
    } else if constexpr (kMatrix) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBlocks<Config> / 2; ++j) {
        stmatrix(S::template at<16>(to, matrix_row(tile.lane), matrix_chunk(tile.lane) * 16, j * 32),
                 words[j * 4], words[j * 4 + 1], words[j * 4 + 2], words[j * 4 + 3]);
      }
    } else if constexpr (kHalf) {
      const int lane_byte = (tile.lane & 1) * 8 + (tile.lane & 2) * 2;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config>; ++i)
        store_shared(S::template at<16>(to, tile.lane >> 2, lane_byte, (i & ~1) * 8) + (i & 1) * (8 * S::kBoxBytes), words[i]);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kBlocks<Config> * 2; ++i) {
        constexpr int kBytes = W * int(sizeof(T));
        const uint32_t place = S::template at<16>(to, tile.lane >> 2, tile.quad() * kBytes, (i >> 1) * 4 * kBytes);
        store_shared(place + (i & 1) * (8 * S::kBoxBytes), runs[i]);
      }
    }
  }
  CUTLASS_DEVICE void tma_store(int epi_m, int epi_n, int stage, bool issue) {
    const int row = tile.m0 + epi_m * 64 + tile.warp * 16;
    if (!issue || row >= tile.m) return;
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < S::kBoxes; ++box) {
      coda::tma_store(params.map, shared + stage * (16 * S::kRowBytes) + box * (16 * S::kBoxBytes),
                      (tile.n0 + epi_n * Config::kSub) / 2 * W + box * S::kBoxColumns, row);
    }
  }
};
template <class Config, class T, int W, auto kMember> using TileStore = Leaf<TileStoreCallbacks<Config, T, W, kMember>>;

template <class Config, class T, int W, Columns kMap, bool kAligned, auto kMember>
struct DirectStoreCallbacks : Callbacks {
  struct Params { T* data; int64_t row_stride, column_stride; int period; };
  Params params;
  Tile tile;
  CUTLASS_DEVICE DirectStoreCallbacks(Params const& p, None*, Tile const& t) : params(p), tile(t) {}
  template <class E>
  CUTLASS_DEVICE int visit(cutlass::Array<E, 1> const& in, int, int epi_m, int epi_n) {
    auto const& x = in[0].*kMember;
    if constexpr (kAligned) {
      if (columns_inside<Config>(tile, epi_n)) return whole(x, epi_m, epi_n);
    }
    Walk<Config, W, kMap> walk(tile, epi_n, params.period);
    const int end = width_of<W>(tile.n);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBlocks<Config> * 2; ++i) {
      if (i && !(i & 1)) walk.next();
      const int r = tile.first_row(epi_m) + 8 * (i & 1), n = walk.column(0);
      if (r >= tile.m || n >= end) continue;
      T* at = params.data + r * params.row_stride;
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < W; ++c) {
        if (n + c < end && walk.writes(c)) at[walk.mapped(c) * params.column_stride] = Format<T>::narrow(x[i * W + c]);
      }
    }
    return 0;
  }
  template <class X>
  CUTLASS_DEVICE int whole(X const& x, int epi_m, int epi_n) {
    constexpr int kOwn = Config::kRun * W;
    CUTLASS_PRAGMA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = tile.first_row(epi_m) + 8 * h;
      if (r >= tile.m) continue;
      T* at = params.data + r * params.row_stride + first_column<Config, W>(tile, epi_n);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBlocks<Config> * W; j += kOwn) {
        auto const own = [&](int i) { return x[element<W>(h, j + i)]; };
        alignas(8) T run[kOwn];
        if constexpr (kOwn == 1) run[0] = Format<T>::narrow(own(0));
        else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kOwn; i += 2)
            reinterpret_cast<typename Format<T>::Pair*>(run)[i / 2] = Format<T>::narrow2(own(i), own(i + 1));
        }
        write_run<kOwn>(at + offset<Config, W>(j), run);
      }
    }
    return 0;
  }
};
template <class Config, class T, int W, Columns kMap, bool kAligned, auto kMember>
using DirectStore = Leaf<DirectStoreCallbacks<Config, T, W, kMap, kAligned, kMember>>;

}  // namespace coda
