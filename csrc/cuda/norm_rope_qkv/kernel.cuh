#pragma once
#include "cuda/common/norm_rope.cuh"
#include "plan/cuda/norm_rope_qkv.h"

namespace dflash::cuda {

// A block takes all heads of some rows: queries, then keys, then values.
template <typename Access>
__device__ __forceinline__ void norm_rope_qkv(const NormRopeQkvLaunch& launch) {
  constexpr int kElements = Access::kElements;
  extern __shared__ float4 staged[];
  __shared__ int64_t positions[kMostNormRopeRows];
  const NormRopeQkvParams& op = launch.op;
  const HeadUnits& head = launch.head;
  const bool rotated = head.rotary_dim > 0;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * launch.block_rows;
  const uint32_t rows = static_cast<uint32_t>(min(static_cast<int64_t>(launch.block_rows), op.rows - first_row));

  if (rotated && threadIdx.x < rows) {
    positions[threadIdx.x] = op.rope.positions[(first_row + threadIdx.x) * op.rope.positions_stride];
  }
  __syncthreads();
  float* rotations = reinterpret_cast<float*>(staged);
  float* q_weight = rotations + launch.block_rows * head.rotary_dim;
  float* k_weight = q_weight + head.head_dim;
  for (uint32_t r = 0; rotated && r < rows; ++r) {
    stage_rotation<kElements>(op.rope, head, positions[r], rotations + r * head.rotary_dim);
  }
  if (op.q_norm_weight != nullptr) stage_weights<kElements>(op.q_norm_weight, op.dtype, 0, head.head_dim, q_weight);
  if (op.k_norm_weight != nullptr) stage_weights<kElements>(op.k_norm_weight, op.dtype, 0, head.head_dim, k_weight);
  __syncthreads();

  const Access access(op.dtype, op.dtype);
  const uint32_t q_heads = static_cast<uint32_t>(op.q_heads), kv_heads = static_cast<uint32_t>(op.kv_heads);
  const uint32_t heads = q_heads + 2 * kv_heads;
  for (uint32_t item = threadIdx.x / head.lanes; item < rows * heads; item += kNormRopeThreads / head.lanes) {
    const uint32_t h = item % heads, r = item / heads;
    const int64_t row = first_row + r;
    const int64_t in = row * op.qkv_row_stride + static_cast<int64_t>(h) * head.head_dim;
    const bool query = h < q_heads, key = !query && h < q_heads + kv_heads;
    const uint32_t h_of_part = query ? h : key ? h - q_heads : h - q_heads - kv_heads;
    const int64_t row_stride = query ? op.q_row_stride : key ? op.k_row_stride : op.v_row_stride;
    const int64_t head_stride = query ? op.q_head_stride : key ? op.k_head_stride : op.v_head_stride;
    const Head<Access> one(access, head, op.qkv, in,
                           query ? op.q
                           : key ? op.k
                                 : op.v,
                           row * row_stride + h_of_part * head_stride);
    const bool normed = query ? op.q_norm_weight != nullptr : key && op.k_norm_weight != nullptr;
    if (normed || (rotated && (query || key))) {
      one.process(normed ? (query ? q_weight : k_weight) : nullptr, rotated ? rotations + r * head.rotary_dim : nullptr,
                  op.eps);
    } else {
      one.copy();
    }
  }
}

}  // namespace dflash::cuda
