// Walks over a row of logits in stretches: a warp takes a stretch, its lanes neighbouring 16-byte chunks.
#pragma once
#include "cuda/common/chunk.cuh"
#include "cuda/verify_sampled/weight.cuh"

namespace dflash::cuda {

template <typename T>
class StretchedRow {
 public:
  static constexpr int kElements = 16 / sizeof(T);

  __device__ __forceinline__ StretchedRow(const T* row, int64_t columns, const SampledRows& rows)
      : columns_(columns), lane_chunks_(rows.lane_chunks) {
    lead_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) % kArgmaxLineBytes / sizeof(T));
    first_ = row - lead_;
  }

  __device__ __forceinline__ int64_t columns() const { return columns_; }
  __device__ __forceinline__ uint32_t stretch_columns() const { return lane_chunks_ * kWarpLanes * kElements; }
  __device__ __forceinline__ int64_t column(uint32_t stretch, uint32_t place) const {
    return static_cast<int64_t>(stretch) * stretch_columns() + place - lead_;
  }
  __device__ __forceinline__ bool holds(int64_t column) const { return column >= 0 && column < columns_; }
  __device__ __forceinline__ float at(int64_t column) const { return to_float(first_[column + lead_]); }

  // For a whole warp, over stretches begin, begin + step, ... below end of which wanted(stretch) is true:
  // visit(i, x, column) for each logit, done(i, stretch) after each stretch. kInFlight stretches are taken at a time,
  // their loads in flight together; `i` says which of these a call belongs to and is a constant where it is compiled.
  template <int kInFlight, typename Wanted, typename Visit, typename Done>
  __device__ __forceinline__ void walk(uint32_t begin, uint32_t end, uint32_t step, const Wanted& wanted,
                                       const Visit& visit, const Done& done) const {
    const uint32_t lane = threadIdx.x % kWarpLanes;
    for (uint32_t next = begin; next < end; next += kInFlight * step) {
      bool taken[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const uint32_t stretch = next + i * step;
        taken[i] = stretch < end && wanted(stretch);
      }
      for (uint32_t part = 0; part < lane_chunks_; ++part) {
        uint4 loaded[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int64_t chunk = chunk_of_lane(next + i * step, part, lane);
          loaded[i] =
              load_16_bytes_once(first_ + chunk * kElements, taken[i] && is_whole(chunk), make_uint4(0, 0, 0, 0));
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (!taken[i]) continue;
          const int64_t chunk = chunk_of_lane(next + i * step, part, lane);
          const int64_t first_column = chunk * kElements - lead_;
          const bool whole = is_whole(chunk);
          float x[kElements];
          unpack_chunk<T>(loaded[i], x);
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const int64_t column = first_column + e;
            if (!whole) {
              if (!holds(column)) continue;
              x[e] = at(column);
            }
            visit(i, x[e], column);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (taken[i]) done(i, next + i * step);
      }
    }
  }

 private:
  __device__ __forceinline__ int64_t chunk_of_lane(uint32_t stretch, uint32_t part, uint32_t lane) const {
    return (static_cast<int64_t>(stretch) * lane_chunks_ + part) * kWarpLanes + lane;
  }
  __device__ __forceinline__ bool is_whole(int64_t chunk) const {
    const int64_t column = chunk * kElements - lead_;
    return column >= 0 && column + kElements <= columns_;
  }

  const T* first_;  // element 0 of chunk 0, at the begin of a line
  int64_t columns_;
  uint32_t lead_, lane_chunks_;
};

// Sums of what lies above thresholds, gathered by each thread for itself.
struct ThreadAbove {
  uint64_t mass[kThresholds] = {};
  uint32_t count[kThresholds] = {};

  __device__ __forceinline__ void add(uint32_t key, uint64_t weight, const uint32_t (&thresholds)[kThresholds]) {
#pragma unroll
    for (int t = 0; t < kThresholds; ++t) {
      mass[t] += key >= thresholds[t] ? weight : 0;
      count[t] += key >= thresholds[t] ? 1 : 0;
    }
  }

  // Of all threads of the block, in every thread. Ends with a barrier.
  template <int kThreads>
  __device__ __forceinline__ const MassAbove& over_block() const {
    constexpr int kWarps = kThreads / kWarpLanes;
    __shared__ MassAbove of_warp[kWarps], total;
    const auto add = [](auto a, auto b) { return a + b; };
    MassAbove& own = of_warp[threadIdx.x / kWarpLanes];
#pragma unroll
    for (int t = 0; t < kThresholds; ++t) {
      const uint64_t warp_mass = warp_reduce(mass[t], add);
      const uint32_t warp_count = warp_reduce(count[t], add);
      if (threadIdx.x % kWarpLanes != 0) continue;
      own.mass[t] = warp_mass;
      own.count[t] = warp_count;
    }
    __syncthreads();
    if (threadIdx.x < kThresholds) {
      uint64_t block_mass = 0, block_count = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        block_mass += of_warp[warp].mass[threadIdx.x];
        block_count += of_warp[warp].count[threadIdx.x];
      }
      total.mass[threadIdx.x] = block_mass;
      total.count[threadIdx.x] = block_count;
    }
    __syncthreads();
    return total;
  }
};

struct LargerKey {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

// The largest of a row's stretch maxima, in every thread.
template <int kThreads>
__device__ __forceinline__ uint32_t top_key_of(const uint32_t* maxima, uint32_t stretches) {
  __shared__ uint32_t top_of_block;
  uint32_t top = 0;
  for (uint32_t s = threadIdx.x; s < stretches; s += kThreads) top = max(top, maxima[s]);
  top = block_reduce<kThreads>(top, 0u, LargerKey());
  if (threadIdx.x == 0) top_of_block = top;
  __syncthreads();
  return top_of_block;
}

}  // namespace dflash::cuda
