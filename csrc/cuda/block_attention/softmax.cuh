// From products of queries and keys to logits, to base 2.
#pragma once
#include "cuda/block_attention/traits.cuh"
#include "cuda/block_attention/work.cuh"
#include "cuda/common/attention_rows.cuh"

namespace dflash::cuda {

// Products to logits. A rounded product, not one contracted with a later sum, so that all kernels agree on it.
template <typename Traits, int kActive>
__device__ __forceinline__ void scale_scores(const BlockAttentionLaunch& launch, Scores<Traits>& scores) {
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][j][e] = __fmul_rn(scores[i][j][e], launch.scale_log2);
    }
  }
  if (launch.softcap_log2 == 0.0f) return;
  // cap * tanh(x / cap) where scores hold 2 x / cap * log2(e): tanh(y) = 1 - 2 / (e^(2 y) + 1).
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float inverse = reciprocal_approximate(exp2_approximate(scores[i][j][e]) + 1.0f);
        scores[i][j][e] = __fmul_rn(launch.softcap_log2, fmaf(-2.0f, inverse, 1.0f));
      }
    }
  }
}

// Selects minus infinity, whatever the product was, where a row does not see a key.
template <typename Traits, int kActive>
__device__ __forceinline__ void mask_scores(const BlockAttentionLaunch& launch, const AttentionWork& work, int tile,
                                            Scores<Traits>& scores) {
  const int first_key = tile * Traits::kKeys + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows past the last one are like it: their queries are zero and they are not written.
      const int row = work.first_row + min(row_of<Traits>(i, half), work.rows - 1);
      const VisibleKeys keys = visible_keys(launch, work, row / static_cast<int>(launch.group));
#pragma unroll
      for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = first_key + j * 8 + e;
          float& score = scores[i][j][2 * half + e];
          score = key >= keys.begin && key < keys.end ? score : kMinusInfinity;
        }
      }
    }
  }
}

}  // namespace dflash::cuda
