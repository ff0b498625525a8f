#pragma once
#include "cuda/common/context_slot.cuh"
#include "cuda/common/norm_rope.cuh"
#include "plan/cuda/write_context_kv.h"

namespace dflash::cuda {

template <typename Access>
__device__ __forceinline__ void write_head(const Head<Access>& head, bool copies, const float* weight,
                                           const float* rotation, float eps) {
  if constexpr (!Access::kBiased) {
    if (copies) return head.copy();
  }
  head.process(weight, rotation, eps);
}

// Block (rows, part, layers): part 0 norms, rotates and writes keys, part 1 writes values.
template <typename Access>
__device__ __forceinline__ void write_context_kv(const WriteContextKvLaunch& launch) {
  constexpr int kElements = Access::kElements;
  extern __shared__ float4 staged[];
  __shared__ int64_t slots[kMostContextRows], positions[kMostContextRows];
  let_next_launch_start();
  wait_for_earlier_launches();
  const WriteContextKvParams& op = launch.op;
  const ContextCaches& caches = op.caches;
  const HeadUnits& head = launch.head;
  const bool values = blockIdx.y == 1;
  const bool rotated = !values && head.rotary_dim > 0, normed = !values && op.k_norm_weight != nullptr;
  // Rows of kv begin with the launch's first row.
  const int64_t first_kv_row = static_cast<int64_t>(blockIdx.x) * launch.block_rows;
  const int64_t first_row = launch.products.first_row + first_kv_row;
  const uint32_t first_layer = blockIdx.z * launch.block_layers;
  const uint32_t layers = min(launch.block_layers, static_cast<uint32_t>(caches.layer_count) - first_layer);

  if (threadIdx.x < launch.block_rows) {
    const int64_t row = first_row + threadIdx.x, slot = context_slot(op, row);
    slots[threadIdx.x] = slot;
    if (rotated && slot >= 0) positions[threadIdx.x] = op.rope.positions[row * op.rope.positions_stride];
  }
  __syncthreads();
  bool all_skipped = true;
  for (uint32_t r = 0; r < launch.block_rows; ++r) all_skipped = all_skipped && slots[r] < 0;
  if (all_skipped) return;

  float* rotations = reinterpret_cast<float*>(staged);
  float* weights = rotations + launch.block_rows * head.rotary_dim;
  if (rotated) {
    for (uint32_t r = 0; r < launch.block_rows; ++r) {
      if (slots[r] >= 0) stage_rotation<kElements>(op.rope, head, positions[r], rotations + r * head.rotary_dim);
    }
  }
  if (normed) {
    for (uint32_t l = 0; l < layers; ++l) {
      stage_weights<kElements>(op.k_norm_weight, op.weight_dtype, (first_layer + l) * op.k_norm_layer_stride,
                               head.head_dim, weights + l * head.head_dim);
    }
  }
  __syncthreads();

  Access access(op.dtype, caches.dtype);
  bool copies = false;
  if constexpr (!Access::kBiased) copies = !rotated && !normed && access.copies();
  const int page_shift = __ffs(static_cast<int>(caches.page_size)) - 1;  // of a power of two
  const uint32_t heads = static_cast<uint32_t>(caches.kv_heads);
  const uint32_t items = launch.block_rows * layers * heads;
  for (uint32_t item = threadIdx.x / head.lanes; item < items; item += kContextThreads / head.lanes) {
    const uint32_t h = item % heads, l = item / heads % layers, r = item / heads / layers;
    const int64_t slot = slots[r];
    if (slot < 0) continue;
    const int64_t page = slot >> page_shift, offset = slot & (caches.page_size - 1);
    const int64_t in = (first_kv_row + r) * op.row_stride + (first_layer + l) * op.layer_stride + h * op.head_stride;
    const ContextCacheLayer& cache = caches.layers[first_layer + l];
    if constexpr (Access::kBiased) {
      access.at_head(launch, first_layer + l, blockIdx.y, h, values ? in + op.part_stride : in);
    }
    if (values) {
      const int64_t out = page * cache.v_page_stride + offset * cache.v_slot_stride + h * cache.v_head_stride;
      write_head(Head<Access>(access, head, op.kv, in + op.part_stride, cache.v, out), copies, nullptr, nullptr, 0.0f);
    } else {
      const int64_t out = page * cache.k_page_stride + offset * cache.k_slot_stride + h * cache.k_head_stride;
      write_head(Head<Access>(access, head, op.kv, in, cache.k, out), copies,
                 normed ? weights + l * head.head_dim : nullptr, rotated ? rotations + r * head.rotary_dim : nullptr,
                 op.eps);
    }
  }
}

}  // namespace dflash::cuda
