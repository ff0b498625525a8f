#pragma once
#include "cuda/common/head_access.cuh"
#include "plan/cuda/update_page_bounds.h"

namespace dflash::cuda {

// The slot of an entry, or -1 where this block has nothing to do: past row_count, skipped, past the cache (refused on
// the CPU, not followed here), or another entry names a higher slot of the page, or the same one before this. Every
// page that is named has one entry left, so no two blocks write the same bounds. For the whole block.
__device__ __forceinline__ int64_t leading_slot(const UpdatePageBoundsParams& op, int64_t entry, int page_shift) {
  __shared__ int64_t own_and_next[2], shared_entries;
  if (threadIdx.x < 2) {
    int64_t entries = op.rows;
    if (op.row_count != nullptr) entries = min(entries, static_cast<int64_t>(*op.row_count));
    const int64_t wanted = entry + threadIdx.x;
    own_and_next[threadIdx.x] = wanted < entries ? op.slot_mapping[wanted * op.slot_mapping_stride] : -1;
    if (threadIdx.x == 0) shared_entries = entries;
  }
  __syncthreads();
  const int64_t slot = own_and_next[0], next = own_and_next[1], entries = shared_entries, page = slot >> page_shift;
  if (slot < 0 || page >= op.pages) return -1;
  // Rows mostly come in order: nearly all entries see here that they do not lead.
  if (next > slot && next >> page_shift == page) return -1;
  bool outranked = false;
  for (int64_t i = threadIdx.x; i < entries; i += kBoundsThreads) {
    const int64_t other = op.slot_mapping[i * op.slot_mapping_stride];
    outranked = outranked || (other >> page_shift == page && (other > slot || (other == slot && i < entry)));
  }
  return __syncthreads_or(outranked) ? -1 : slot;
}

// NaN where a row has NaN, as torch.amin and torch.amax.
template <int kElements>
__device__ __forceinline__ void widen(const float (&x)[kElements], float (&minima)[kElements],
                                      float (&maxima)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    minima[i] = x[i] < minima[i] || x[i] != x[i] ? x[i] : minima[i];
    maxima[i] = x[i] > maxima[i] || x[i] != x[i] ? x[i] : maxima[i];
  }
}

// Block (entry of slot_mapping, layers). A lane takes the same few channels of every row of the page.
template <typename Access>
__device__ __forceinline__ void update_page_bounds(const UpdatePageBoundsLaunch& launch) {
  constexpr int kElements = Access::kElements;
  constexpr int kRows = 4;  // in flight
  let_next_launch_start();
  wait_for_earlier_launches();
  const UpdatePageBoundsParams& op = launch.op;
  const int page_shift = __ffs(static_cast<int>(op.page_size)) - 1;  // of a power of two
  const int64_t slot = leading_slot(op, blockIdx.x, page_shift);
  if (slot < 0) return;

  const Access access(op.dtype, op.dtype);
  const int64_t page = slot >> page_shift;
  const int last_row = static_cast<int>(slot & (op.page_size - 1));
  const uint32_t first_layer = blockIdx.y * launch.block_layers;
  const uint32_t layers = min(launch.block_layers, static_cast<uint32_t>(op.layer_count) - first_layer);
  const uint32_t layer_items = static_cast<uint32_t>(op.kv_heads) * launch.pieces;
  for (uint32_t item = threadIdx.x; item < layers * layer_items; item += kBoundsThreads) {
    const PageBoundsLayer& layer = op.layers[first_layer + item / layer_items];
    const uint32_t head = item % layer_items / launch.pieces, channel = item % launch.pieces * kElements;
    const int64_t first = page * layer.k_page_stride + head * layer.k_head_stride + channel;
    float minima[kElements], maxima[kElements];
    access.load(layer.k, first, minima);
#pragma unroll
    for (int i = 0; i < kElements; ++i) maxima[i] = minima[i];
    int row = 1;
    for (; row + kRows <= last_row + 1; row += kRows) {
      float x[kRows][kElements];
#pragma unroll
      for (int r = 0; r < kRows; ++r) access.load(layer.k, first + (row + r) * layer.k_slot_stride, x[r]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) widen(x[r], minima, maxima);
    }
    for (; row <= last_row; ++row) {
      float x[kElements];
      access.load(layer.k, first + row * layer.k_slot_stride, x);
      widen(x, minima, maxima);
    }
    const int64_t out = page * layer.bounds_page_stride + head * layer.bounds_head_stride + channel;
    access.store(layer.bounds, out, minima);
    access.store(layer.bounds, out + layer.bounds_part_stride, maxima);
  }
}

}  // namespace dflash::cuda
