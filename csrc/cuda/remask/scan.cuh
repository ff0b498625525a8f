// Argmax and softmax denominator of a row without one excluded column, in one pass over the logits.
#pragma once
#include "cuda/common/argmax.cuh"
#include "cuda/common/chunk.cuh"

namespace dflash::cuda {

// 2^((value - largest) / ln 2); 0 where value is minus infinity and largest is not.
__device__ __forceinline__ float exp_below(float value, float largest) {
  constexpr float kLog2E = 1.44269504f;
  return exp2_approximate((value - largest) * kLog2E);
}

// A part of a row: its best, 0 if it holds no column, and the sum of exp(logit - value of the best). Where that value
// is not finite the sum means nothing, and no one asks for it.
struct SoftmaxPart {
  uint64_t best;
  float sum;
};

// Chunks of a row as in argmax.cuh, but the scan has each element in hand, so it may pass over one of them.
template <typename T>
class SoftmaxRow {
 public:
  static constexpr int kElements = 16 / sizeof(T);

  // excluded: a column, or anything past the row.
  __device__ __forceinline__ SoftmaxRow(const T* row, int64_t columns, int64_t excluded) : columns_(columns) {
    lead_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) % kArgmaxLineBytes / sizeof(T));
    first_ = row - lead_;
    excluded_ = excluded < columns ? excluded : -1;
    chunks_ = static_cast<uint32_t>((lead_ + columns + kElements - 1) / kElements);
  }

  // This thread's share of chunks [begin, end).
  __device__ __forceinline__ SoftmaxPart thread_part(uint32_t begin, uint32_t end) const {
    constexpr int kInFlight = 4;
    end = min(end, chunks_);
    State state{-kInfinity, 0.0f, 0, false};
    for (uint32_t next = begin + threadIdx.x; next < end; next += kInFlight * kArgmaxThreads) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const uint32_t at = next + i * kArgmaxThreads;
        loaded[i] = load_16_bytes_once(first_ + static_cast<int64_t>(at) * kElements, at < end && is_plain(at),
                                       make_uint4(0, 0, 0, 0));
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const uint32_t at = next + i * kArgmaxThreads;
        if (at >= end) continue;
        float x[kElements];
        bool any = true;
        if (is_plain(at)) {
          unpack_chunk<T>(loaded[i], x);
        } else {
          any = load_elements_of(at, x);
        }
        if (any) add(at, x, &state);
      }
    }
    return {state.any ? best_of(state.value, state.chunk) : 0, state.sum};
  }

  // For a whole warp: the first column that holds the value of `best`, in every lane.
  __device__ __forceinline__ int64_t resolve(uint64_t best) const {
    const int lane = threadIdx.x % kWarpLanes;
    const int64_t first_column = static_cast<int64_t>(chunk_of(best)) * kElements - lead_;
    const int64_t column = first_column + lane;
    const bool found = lane < kElements && counts(column) &&
                       ordered_bits(to_float(first_[column + lead_])) == static_cast<uint32_t>(best >> 32);
    return first_column + __ffs(static_cast<int>(__ballot_sync(kAllLanes, found))) - 1;
  }

 private:
  static constexpr float kInfinity = __builtin_inff();
  struct State {
    float value, sum;
    uint32_t chunk;
    bool any;
  };

  __device__ __forceinline__ bool counts(int64_t column) const {
    return column >= 0 && column < columns_ && column != excluded_;
  }

  // Wholly inside the row and without the excluded column.
  __device__ __forceinline__ bool is_plain(uint32_t chunk) const {
    const int64_t column = static_cast<int64_t>(chunk) * kElements - lead_;
    return column >= 0 && column + kElements <= columns_ && !(excluded_ >= column && excluded_ < column + kElements);
  }

  // Minus infinity for what does not count; false if nothing does.
  __device__ __forceinline__ bool load_elements_of(uint32_t chunk, float (&x)[kElements]) const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int64_t element = static_cast<int64_t>(chunk) * kElements + i;
      x[i] = -kInfinity;
      if (counts(element - lead_)) {
        x[i] = to_float(first_[element]);
        any = true;
      }
    }
    return any;
  }

  // Chunks come in rising order, so an equal value later on does not count, nor does a NaN after the first.
  static __device__ __forceinline__ void add(uint32_t chunk, const float (&x)[kElements], State* state) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < kElements; ++i) largest = max_nan(largest, x[i]);
    if (!state->any || (!(largest <= state->value) && state->value == state->value)) {
      if (state->sum > 0.0f) state->sum *= exp_below(state->value, largest);
      state->value = largest;
      state->chunk = chunk;
      state->any = true;
    }
    if (state->value == -kInfinity) return;
#pragma unroll
    for (int i = 0; i < kElements; ++i) state->sum += exp_below(x[i], state->value);
  }

  const T* first_;  // element 0 of chunk 0, at the begin of a line
  int64_t columns_, excluded_;
  uint32_t lead_, chunks_;
};

// A part's sum, taken relative to a larger best.
__device__ __forceinline__ float rescaled(const SoftmaxPart& part, uint64_t best) {
  return part.sum > 0.0f ? part.sum * exp_below(value_of(part.best), value_of(best)) : 0.0f;
}

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// All threads' parts, valid in warp 0.
__device__ __forceinline__ SoftmaxPart block_part(const SoftmaxPart& part) {
  __shared__ uint64_t best_of_block;
  const uint64_t best = block_reduce<kArgmaxThreads>(part.best, uint64_t{0}, Larger());
  if (threadIdx.x == 0) best_of_block = best;
  __syncthreads();
  return {best_of_block, block_reduce<kArgmaxThreads>(rescaled(part, best_of_block), 0.0f, Sum())};
}

}  // namespace dflash::cuda
