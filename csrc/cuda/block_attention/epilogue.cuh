// From a row tile's sums to its output, over the sums of other splits where there are any.
#pragma once
#include "cuda/block_attention/softmax.cuh"
#include "cuda/common/arrival.cuh"

namespace dflash::cuda {

// The sums of one split of a row tile in the workspace: four values of every thread next to each other, in the order of
// its registers, then every row's maximum and denominator.
template <typename Traits>
class PartialSums {
  static constexpr int kQuads = 2 * Traits::kDimBlocks;  // of a row block
  static constexpr int kLoads = 16;

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

  // sums += these. Up to kLoads loads are under way before the first is needed; with more, ptxas would spill.
  __device__ __forceinline__ void add_to(RowSums<Traits>& sums, int row_block) const {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of<Traits>(row_block, half);
      float& largest = sums.largest[row_block][half];
      const float own = rows_[row], top = fmaxf(largest, own);
      sums.scale(row_block, half, exp2_approximate(largest - finite_or_zero(top)));
      factor[half] = exp2_approximate(own - finite_or_zero(top));
      sums.weights[row_block][half] += factor[half] * rows_[Traits::kRows + row];
      largest = top;
    }
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (j > 0 && j % kLoads == 0) __syncwarp();
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

// The partial sums of a row tile and kv head, one for each split of the request's keys.
template <typename Traits>
class SplitSums {
 public:
  __device__ __forceinline__ SplitSums(const BlockAttentionLaunch& launch, int active) : active_(active) {
    const int64_t item = static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y;
    first_ = launch.partials + item * launch.splits * Traits::kPartialFloats;
  }

  // For all threads. What they stored is seen by a block that later finds itself last.
  __device__ __forceinline__ void store(int split, const RowSums<Traits>& sums) const {
    __syncthreads();  // no lane still reads what another one replaces
    of_split(split).store(sums, active_);
    __syncthreads();
  }

  // Sums of the `count` splits `index * step` from index `begin` on, the first of them no less than `lowest`; in the
  // order of the splits, whichever block adds them.
  __device__ __forceinline__ void add(int begin, int count, int step, int lowest, RowSums<Traits>& sums) const {
    sums.clear();
#pragma unroll 1
    for (int index = begin; index < begin + count; ++index) {
      const PartialSums<Traits> partial = of_split(max(lowest, index * step));
#pragma unroll
      for (int i = 0; i < Traits::kRowBlocks; ++i) {
        if (i < active_) partial.add_to(sums, i);
      }
    }
  }

 private:
  __device__ __forceinline__ PartialSums<Traits> of_split(int split) const {
    return PartialSums<Traits>(first_ + split * Traits::kPartialFloats);
  }

  float* first_;
  int active_;
};

// Leaves the sums of all splits in the last block to arrive; false in the others. Many splits meet in two steps, first
// those of a group, then the groups, so that no block adds more than about twice the root of their number.
template <typename Traits>
__device__ __forceinline__ bool combine_splits(const BlockAttentionLaunch& launch, const AttentionWork& work,
                                               int active, RowSums<Traits>& sums) {
  const SplitSums<Traits> partials(launch, active);
  uint32_t* const arrivals = launch.arrivals + (blockIdx.x * gridDim.y + blockIdx.y) * launch.counters;
  const int split = static_cast<int>(blockIdx.z), group = static_cast<int>(launch.split_group);
  const int first = work.first_split, last = work.last_split;
  // Groups are cut where the request's splits are counted from, not the row tile's.
  const int own_group = split / group, first_group = first / group, groups = last / group - first_group + 1;
  const int group_begin = max(first, own_group * group), group_end = min(last + 1, (own_group + 1) * group);
  partials.store(split, sums);
  if (!last_to_arrive(arrivals + own_group, static_cast<uint32_t>(group_end - group_begin))) return false;
  partials.add(group_begin, group_end - group_begin, 1, 0, sums);
  if (groups == 1) return true;
  partials.store(group_begin, sums);
  if (!last_to_arrive(arrivals + launch.counters - 1, static_cast<uint32_t>(groups))) return false;
  partials.add(first_group, groups, group, first, sums);
  return true;
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
