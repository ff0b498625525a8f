// Reductions over a warp and over a block.
#pragma once
#include <cstdint>

namespace dflash::cuda {

constexpr int kWarpLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// Butterfly of shuffles: every lane gets the result.
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, const Combine& combine) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Valid in every thread of warp 0. To be called by all kThreads threads; a block that calls it twice puts a barrier in
// between.
template <int kThreads, typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, T neutral, const Combine& combine) {
  constexpr int kWarps = kThreads / kWarpLanes;
  static_assert(kThreads % kWarpLanes == 0 && kWarps <= kWarpLanes, "whole warps, at most 32");
  __shared__ T of_warp[kWarps];
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  value = warp_reduce(value, combine);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp == 0) value = warp_reduce(lane < kWarps ? of_warp[lane] : neutral, combine);
  return value;
}

// The sum of `value` over the threads before this one; `total` over all of them. Ends with a barrier.
template <int kThreads>
__device__ __forceinline__ uint64_t block_sum_before(uint64_t value, uint64_t* total) {
  constexpr int kWarps = kThreads / kWarpLanes;
  __shared__ uint64_t of_warp[kWarps];
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  uint64_t upto = value;
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const uint64_t lower = __shfl_up_sync(kAllLanes, upto, distance);
    if (lane >= distance) upto += lower;
  }
  if (lane == kWarpLanes - 1) of_warp[warp] = upto;
  __syncthreads();
  uint64_t before = upto - value;
  *total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warp[w];
    *total += of_warp[w];
  }
  __syncthreads();
  return before;
}

}  // namespace dflash::cuda
