// From products of queries and keys to weights, with the softmax's maximum and denominator kept row by row as tiles
// come
// ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018). Logits are to base 2.
#pragma once
#include "cuda/block_attention/traits.cuh"
#include "cuda/block_attention/work.cuh"

namespace dflash::cuda {

constexpr float kMinusInfinity = -INFINITY;

// What a warp keeps of its rows. Row block i holds rows 16 * (i * kWarps + warp) and the 15 next ones of the row tile,
// so that all warps work where there are few rows. A lane has rows lane / 4 and lane / 4 + 8 of each, as mma lays them
// out.
template <typename Traits>
struct RowSums {
  float values[Traits::kRowBlocks][2 * Traits::kDimBlocks][4];
  float largest[Traits::kRowBlocks][2];
  float weights[Traits::kRowBlocks][2];  // of this lane's keys alone until `add_lanes`

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * Traits::kDimBlocks; ++j) {
        values[i][j][0] = values[i][j][1] = values[i][j][2] = values[i][j][3] = 0.0f;
      }
      largest[i][0] = largest[i][1] = kMinusInfinity;
      weights[i][0] = weights[i][1] = 0.0f;
    }
  }

  __device__ __forceinline__ void scale(int row_block, int half, float factor) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kDimBlocks; ++j) {
      values[row_block][j][2 * half] *= factor;
      values[row_block][j][2 * half + 1] *= factor;
    }
    weights[row_block][half] *= factor;
  }
};

// The row of the row tile that a lane holds in a half of a row block.
template <typename Traits>
__device__ __forceinline__ int row_of(int row_block, int half) {
  const int warp = static_cast<int>(threadIdx.x / kWarpLanes), lane = static_cast<int>(threadIdx.x % kWarpLanes);
  return (row_block * Traits::kWarps + warp) * 16 + lane / 4 + 8 * half;
}

// What a maximum is subtracted as: a row that has seen no finite logit keeps weights of zero instead of NaN.
__device__ __forceinline__ float finite_or_zero(float largest) { return largest == kMinusInfinity ? 0.0f : largest; }

template <typename Traits>
using Scores = float[Traits::kRowBlocks][2 * Traits::kKeyBlocks][4];

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

// Logits to weights; sums over earlier tiles are rescaled where a row's maximum rises.
template <typename Traits, int kActive>
__device__ __forceinline__ void weigh_scores(Scores<Traits>& scores, RowSums<Traits>& sums) {
  float largest[kActive][2];
  bool rises = false;
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = sums.largest[i][half];
#pragma unroll
      for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
        top = fmaxf(top, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      largest[i][half] = top;
      rises = rises || top > sums.largest[i][half];
    }
  }
  // Most tiles raise no maximum of the warp's rows. Where one rises, the others' factors are exactly one.
  if (__any_sync(kAllLanes, rises)) {
#pragma unroll
    for (int i = 0; i < kActive; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums.scale(i, half, exp2_approximate(sums.largest[i][half] - finite_or_zero(largest[i][half])));
        sums.largest[i][half] = largest[i][half];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = finite_or_zero(largest[i][half]);
#pragma unroll
      for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[i][j][e] = exp2_approximate(scores[i][j][e] - top);
          sums.weights[i][half] += scores[i][j][e];
        }
      }
    }
  }
}

// Denominators over all keys: the four lanes of a row have a quarter each.
template <typename Traits>
__device__ __forceinline__ void add_lanes(RowSums<Traits>& sums) {
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& weights = sums.weights[i][half];
      weights += __shfl_xor_sync(kAllLanes, weights, 1);
      weights += __shfl_xor_sync(kAllLanes, weights, 2);
    }
  }
}

}  // namespace dflash::cuda
