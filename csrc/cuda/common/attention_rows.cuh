// What a warp keeps of its rows while key tiles come: sums over values, and the softmax's maximum and denominator
// ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018). Logits are to base 2.
#pragma once
#include "cuda/common/ptx.cuh"
#include "cuda/common/reduce.cuh"

namespace dflash::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

constexpr float kMinusInfinity = -INFINITY;

// What a warp keeps of its rows: kRowBlocks blocks of 16, the ones of the row tile that Traits::row_block names. A lane
// has rows lane / 4 and lane / 4 + 8 of each, as mma lays them out.
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

  __device__ __forceinline__ void scale_values(int row_block, int half, float factor) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kDimBlocks; ++j) {
      values[row_block][j][2 * half] *= factor;
      values[row_block][j][2 * half + 1] *= factor;
    }
  }
  __device__ __forceinline__ void scale(int row_block, int half, float factor) {
    scale_values(row_block, half, factor);
    weights[row_block][half] *= factor;
  }
};

// The row of the row tile that a lane holds in a half of a row block.
template <typename Traits>
__device__ __forceinline__ int row_of(int row_block, int half) {
  return Traits::row_block(row_block) * 16 + static_cast<int>(threadIdx.x % kWarpLanes) / 4 + 8 * half;
}

// What a maximum is subtracted as: a row that has seen no finite logit keeps weights of zero instead of NaN.
__device__ __forceinline__ float finite_or_zero(float largest) { return largest == kMinusInfinity ? 0.0f : largest; }

template <typename Traits>
using Scores = float[Traits::kRowBlocks][2 * Traits::kKeyBlocks][4];

// The rows' maxima with a tile's logits. Whether one of the warp's rises: most tiles raise none.
template <typename Traits, int kActive>
__device__ __forceinline__ bool find_largest(const Scores<Traits>& scores, const RowSums<Traits>& sums,
                                             float (&largest)[kActive][2]) {
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
  return __any_sync(kAllLanes, rises);
}

// What sums over earlier tiles are multiplied by where a row's maximum rises; exactly one where it does not.
__device__ __forceinline__ float earlier_factor(float before, float largest) {
  return exp2_approximate(before - finite_or_zero(largest));
}

// Logits to weights, by maxima that they are part of.
template <typename Traits, int kActive>
__device__ __forceinline__ void exponentiate_scores(Scores<Traits>& scores, const float (&largest)[kActive][2],
                                                    RowSums<Traits>& sums) {
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

// Logits to weights; sums over earlier tiles are rescaled where a row's maximum rises.
template <typename Traits, int kActive>
__device__ __forceinline__ void weigh_scores(Scores<Traits>& scores, RowSums<Traits>& sums) {
  float largest[kActive][2];
  if (find_largest<Traits, kActive>(scores, sums, largest)) {
#pragma unroll
    for (int i = 0; i < kActive; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums.scale(i, half, earlier_factor(sums.largest[i][half], largest[i][half]));
        sums.largest[i][half] = largest[i][half];
      }
    }
  }
  exponentiate_scores<Traits, kActive>(scores, largest, sums);
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

// Four lanes hold word `lane` of each of four 16-byte chunks; afterwards lane i holds chunk i. Two rounds of a 4 x 4
// transposition: neighbours, then neighbouring pairs.
__device__ __forceinline__ void gather_chunk(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t received = __shfl_xor_sync(kAllLanes, upper ? words[i] : words[i | distance], distance);
      (upper ? words[i] : words[i | distance]) = received;
    }
  }
}

}  // namespace dflash::cuda
