#pragma once
// TMA descriptors, which the host encodes, and the copies that use them: two-dimensional boxes, inner extent first, and boxes
// of rows in the order that gives a thread neighbouring columns.
#include "cute/arch/copy_sm90.hpp"

namespace coda {

struct alignas(64) TensorMap { uint64_t opaque[16]; };

CUTLASS_DEVICE void prefetch(TensorMap const* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Brings the box at (inner, outer) to shared memory, of this block or of those in `mask`, and counts it on their barriers.
// What is read kOnce need not stay in L2.
template <bool kMulticast, bool kOnce = false>
CUTLASS_DEVICE void tma_load(TensorMap const* map, uint64_t* barrier, uint16_t mask, void* smem, int inner, int outer) {
  constexpr uint64_t hint = uint64_t(kOnce ? cute::TMA::CacheHintSm90::EVICT_FIRST : cute::TMA::CacheHintSm90::EVICT_NORMAL);
  if constexpr (kMulticast) cute::SM90_TMA_LOAD_MULTICAST_2D::copy(map, barrier, mask, hint, smem, inner, outer);
  else cute::SM90_TMA_LOAD_2D::copy(map, barrier, hint, smem, inner, outer);
}
// The rows of `group` and of those after it; a group is the 8·kRun rows that are in another order (fragment.hpp).
template <bool kMulticast>
CUTLASS_DEVICE void tma_load_groups(TensorMap const* map, uint64_t* barrier, uint16_t mask, void* smem, int inner, int group) {
  constexpr uint64_t hint = uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  if constexpr (kMulticast) cute::SM90_TMA_LOAD_MULTICAST_5D::copy(map, barrier, mask, hint, smem, inner, 0, 0, 0, group);
  else cute::SM90_TMA_LOAD_5D::copy(map, barrier, hint, smem, inner, 0, 0, 0, group);
}
CUTLASS_DEVICE void tma_store(TensorMap const* map, void const* smem, int inner, int outer) {
  cute::SM90_TMA_STORE_2D::copy(map, smem, inner, outer);
}

}  // namespace coda
