// From a row tile's sums to its output, over the sums of other splits where there are any.
#pragma once
#include "cuda/block_attention/softmax.cuh"
#include "cuda/common/arrival.cuh"

namespace dflash::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The sums of one split of a row tile in the workspace: four values of every thread next to each other, in the order of
// its registers, then every row's maximum and denominator.
template <typename Traits>
class PartialSums {
  static constexpr int kQuads = 2 * Traits::kDimBlocks;  // of a row block

 public:
  __device__ __forceinline__ explicit PartialSums(float* floats)
      : values_(reinterpret_cast<float4*>(floats)), rows_(floats + Traits::kRows * Traits::kHeadDim) {}

  __device__ __forceinline__ void store(const RowSums<Traits>& sums, int active) const {
#pragma unroll
    for (int i = 0; i < Traits::kRowBlocks; ++i) {
      if (i >= active) break;
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float (&quad)[4] = sums.values[i][j];
        values_[(i * kQuads + j) * Traits::kThreads + threadIdx.x] = make_float4(quad[0], quad[1], quad[2], quad[3]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of<Traits>(i, half);
        if (threadIdx.x % 4 == 0) rows_[row] = sums.largest[i][half];
        if (threadIdx.x % 4 == 1) rows_[Traits::kRows + row] = sums.weights[i][half];
      }
    }
  }

  __device__ __forceinline__ float largest(int row) const { return rows_[row]; }
  // sums += these, whose maximum becomes the sums'.
  __device__ __forceinline__ void add_to(RowSums<Traits>& sums, int row_block) const {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of<Traits>(row_block, half);
      factor[half] = exp2_approximate(rows_[row] - finite_or_zero(sums.largest[row_block][half]));
      sums.weights[row_block][half] += factor[half] * rows_[Traits::kRows + row];
    }
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 quad = values_[(row_block * kQuads + j) * Traits::kThreads + threadIdx.x];
      float (&values)[4] = sums.values[row_block][j];
      values[0] += factor[0] * quad.x;
      values[1] += factor[0] * quad.y;
      values[2] += factor[1] * quad.z;
      values[3] += factor[1] * quad.w;
    }
  }

 private:
  float4* values_;
  float* rows_;
};

// Leaves the sums of all splits in the last block to arrive, added in the order of the splits; false in the others.
template <typename Traits>
__device__ __forceinline__ bool combine_splits(const BlockAttentionLaunch& launch, const AttentionWork& work,
                                               int active, RowSums<Traits>& sums) {
  const uint32_t item = blockIdx.x * gridDim.y + blockIdx.y;
  constexpr int64_t kFloats = Traits::kPartialFloats;
  float* const partials = launch.partials + static_cast<int64_t>(item) * launch.splits * kFloats;
  PartialSums<Traits>(partials + work.split * kFloats).store(sums, active);
  __syncthreads();
  if (!last_to_arrive(launch.arrivals + item, work.splits)) return false;
  sums.clear();
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
    if (i >= active) break;
#pragma unroll 1
    for (uint32_t split = 0; split < work.splits; ++split) {
      const PartialSums<Traits> partial(partials + split * kFloats);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums.largest[i][half] = fmaxf(sums.largest[i][half], partial.largest(row_of<Traits>(i, half)));
      }
    }
#pragma unroll 1
    for (uint32_t split = 0; split < work.splits; ++split) {
      PartialSums<Traits>(partials + split * kFloats).add_to(sums, i);
    }
  }
  return true;
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

// Divides by the denominators and writes the row tile's outputs.
template <typename Traits>
__device__ __forceinline__ void write_rows(const BlockAttentionLaunch& launch, const AttentionWork& work, int active,
                                           RowSums<Traits>& sums) {
  const BlockAttentionParams& op = launch.op;
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
    if (i >= active) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of<Traits>(i, half);
      const bool present = row < work.rows;
      const uint32_t request_row = static_cast<uint32_t>(work.first_row + (present ? row : 0));
      const int64_t token = work.first_token + request_row / launch.group;
      const int64_t head = static_cast<int64_t>(blockIdx.y) * launch.group + request_row % launch.group;
      float largest = sums.largest[i][half], weights = sums.weights[i][half], factor = 1.0f;
      if (op.sinks != nullptr) {
        const float sink = op.sinks[head * op.sinks_stride] * kLog2E;
        const float top = fmaxf(largest, sink);
        factor = exp2_approximate(largest - finite_or_zero(top));
        weights = weights * factor + exp2_approximate(sink - finite_or_zero(top));
        largest = top;
      }
      const bool empty = weights == 0.0f;
      const float normalise = empty ? 0.0f : factor / weights;
      typename Traits::T* const out =
          static_cast<typename Traits::T*>(op.out) + token * op.out_token_stride + head * op.out_head_stride;
      const int lane = static_cast<int>(threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < 2 * Traits::kDimBlocks; j += 4) {
        uint32_t words[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float (&quad)[4] = sums.values[i][j + c];
          words[c] = Traits::pack(quad[2 * half] * normalise, quad[2 * half + 1] * normalise);
        }
        gather_chunk(words);
        if (present) reinterpret_cast<uint4*>(out)[j + lane] = make_uint4(words[0], words[1], words[2], words[3]);
      }
      if (op.lse != nullptr && present && lane == 0) {
        op.lse[token * op.lse_token_stride + head * op.lse_head_stride] =
            empty ? kMinusInfinity : kLn2 * (largest + log2_approximate(weights));
      }
    }
  }
}

}  // namespace dflash::cuda
