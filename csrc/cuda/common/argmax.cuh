// Argmax of rows of logits that many blocks share: each block takes a stretch of a row, the last one to arrive merges.
//
// A row is cut into 16-byte chunks, counted from the 128-byte line it starts in, so that warps load whole lines
// wherever the row starts; its first and last chunk may lie in it only partly. The scan keeps the maximum and the chunk
// it came from, not the column: one packed max for each pair of 16-bit logits, one compare and two selects for each
// chunk. Which column it was is looked up once a row, in the winning chunk.
#pragma once
#include "cuda/common/arrival.cuh"
#include "cuda/common/convert.cuh"
#include "cuda/common/reduce.cuh"
#include "plan/cuda/argmax_rows.h"

namespace dflash::cuda {

// A value and its chunk as one number that is larger where the value is larger, NaN above all, or where the values are
// equal and the chunk is lower. Below every such number: 0. (2^32 chunks would be a row of 64 GiB.)
__device__ __forceinline__ uint32_t ordered_bits(float value) {
  if (value != value) return 0xffffffffu;
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes +0
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ uint64_t best_of(float value, uint32_t chunk) {
  return static_cast<uint64_t>(ordered_bits(value)) << 32 | static_cast<uint32_t>(~chunk);
}
// The value that best_of() was given; +0 for either zero, one NaN for all.
__device__ __forceinline__ float value_of(uint64_t best) {
  const uint32_t ordered = static_cast<uint32_t>(best >> 32);
  return __uint_as_float(ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ uint32_t chunk_of(uint64_t best) { return ~static_cast<uint32_t>(best); }

struct Larger {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// The largest value of a chunk, NaN if it holds one; and a chunk of minus infinity.
template <typename T>
struct Chunk;
template <>
struct Chunk<float> {
  static constexpr uint32_t kLowest = 0xff800000u;
  static __device__ __forceinline__ float largest(const uint4& chunk) {
    return max_nan(max_nan(__uint_as_float(chunk.x), __uint_as_float(chunk.y)),
                   max_nan(__uint_as_float(chunk.z), __uint_as_float(chunk.w)));
  }
};
template <>
struct Chunk<Float16> {
  static constexpr uint32_t kLowest = 0xfc00fc00u;
  static __device__ __forceinline__ float largest(const uint4& chunk) {
    const uint32_t pair = max_nan_f16x2(max_nan_f16x2(chunk.x, chunk.y), max_nan_f16x2(chunk.z, chunk.w));
    return max_nan(float_from_f16(static_cast<uint16_t>(pair)), float_from_f16(static_cast<uint16_t>(pair >> 16)));
  }
};
template <>
struct Chunk<BFloat16> {
  static constexpr uint32_t kLowest = 0xff80ff80u;
  static __device__ __forceinline__ float largest(const uint4& chunk) {
    const uint32_t pair = max_nan_bf16x2(max_nan_bf16x2(chunk.x, chunk.y), max_nan_bf16x2(chunk.z, chunk.w));
    return max_nan(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
};

template <typename T>
class ChunkedRow {
 public:
  static constexpr int kElements = 16 / sizeof(T);

  __device__ __forceinline__ ChunkedRow(const T* row, int64_t columns) : columns_(columns) {
    lead_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) % kArgmaxLineBytes / sizeof(T));
    first_ = row - lead_;
    whole_begin_ = (lead_ + kElements - 1) / kElements;
    whole_end_ = static_cast<uint32_t>((lead_ + columns) / kElements);
    chunks_ = static_cast<uint32_t>((lead_ + columns + kElements - 1) / kElements);
  }

  // The best of this thread's share of chunks [begin, end).
  __device__ __forceinline__ uint64_t thread_best(uint32_t begin, uint32_t end) const {
    constexpr int kInFlight = 4;
    constexpr uint32_t kLowest = Chunk<T>::kLowest;
    const uint32_t whole_end = min(end, whole_end_);
    uint32_t next = begin + threadIdx.x;
    if (next < whole_begin_) next += kArgmaxThreads;
    uint64_t best = 0;
    if (next < whole_end) {
      float value = __uint_as_float(Chunk<float>::kLowest);
      uint32_t chunk = next;
      for (; next < whole_end; next += kInFlight * kArgmaxThreads) {
        uint4 loaded[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const uint32_t at = next + i * kArgmaxThreads;
          loaded[i] = load_16_bytes_once(first_ + static_cast<int64_t>(at) * kElements, at < whole_end,
                                         make_uint4(kLowest, kLowest, kLowest, kLowest));
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const float largest = Chunk<T>::largest(loaded[i]);
          // Chunks come in rising order, so an equal value later on does not count, nor does a NaN after the first.
          if (!(largest <= value) && value == value) {
            value = largest;
            chunk = next + i * kArgmaxThreads;
          }
        }
      }
      best = best_of(value, chunk);
    }
    // Chunks that lie in the row only partly: the first one is warp 0's, the last one warp 1's, an element a lane.
    if (threadIdx.x < kWarpLanes && lead_ % kElements != 0 && begin == 0) {
      best = Larger()(best, lane_best(whole_begin_ - 1));
    }
    if (threadIdx.x / kWarpLanes == 1 && whole_end_ < chunks_ && begin < chunks_ && chunks_ <= end) {
      best = Larger()(best, lane_best(chunks_ - 1));
    }
    return best;
  }

  // For a whole warp: calls `store(column, value)` in the one lane that holds the first element equal to `best`.
  template <typename Store>
  __device__ __forceinline__ void resolve(uint64_t best, const Store& store) const {
    const uint32_t chunk = chunk_of(best);
    const bool in_row = lane_holds(chunk);
    const float value = in_row ? to_float(first_[lane_element(chunk)]) : 0.0f;
    const bool found = in_row && ordered_bits(value) == static_cast<uint32_t>(best >> 32);
    const uint32_t lanes = __ballot_sync(kAllLanes, found);
    if (threadIdx.x % kWarpLanes == __ffs(static_cast<int>(lanes)) - 1) store(lane_element(chunk) - lead_, value);
  }

 private:
  // The element of a chunk that a warp's lane looks at, counted from the first chunk's begin; does it lie in the row?
  static __device__ __forceinline__ int64_t lane_element(uint32_t chunk) {
    return static_cast<int64_t>(chunk) * kElements + threadIdx.x % kWarpLanes;
  }
  __device__ __forceinline__ bool lane_holds(uint32_t chunk) const {
    const int64_t column = lane_element(chunk) - lead_;
    return threadIdx.x % kWarpLanes < kElements && column >= 0 && column < columns_;
  }
  __device__ __forceinline__ uint64_t lane_best(uint32_t chunk) const {
    return lane_holds(chunk) ? best_of(to_float(first_[lane_element(chunk)]), chunk) : 0;
  }

  const T* first_;  // element 0 of chunk 0, at the begin of a line
  int64_t columns_;
  uint32_t lead_, whole_begin_, whole_end_, chunks_;
};

// The best of stretch `stretch` of a row, valid in warp 0.
template <typename T>
__device__ __forceinline__ uint64_t stretch_best(const ChunkedRow<T>& row, const ArgmaxRows& rows, uint32_t stretch) {
  const uint32_t begin = stretch * rows.stretch_chunks;
  return block_reduce<kArgmaxThreads>(row.thread_best(begin, begin + rows.stretch_chunks), uint64_t{0}, Larger());
}

// For a whole warp: the best of all stretches of a row, whose blocks have arrived.
__device__ __forceinline__ uint64_t merged_best(const ArgmaxRows& rows, int64_t row) {
  const uint64_t* bests = rows.stretch_best + row * rows.stretches;
  uint64_t best = 0;
  for (uint32_t i = threadIdx.x % kWarpLanes; i < rows.stretches; i += kWarpLanes) best = Larger()(best, bests[i]);
  return warp_reduce(best, Larger());
}

}  // namespace dflash::cuda
