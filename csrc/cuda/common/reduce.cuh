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

}  // namespace dflash::cuda
