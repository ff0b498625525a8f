// What the other kernels need of each row: lse to base 2, and the sum of grad_out * out (delta).
#pragma once
#include "cuda/common/convert.cuh"
#include "cuda/masked_block_attention_backward/traits.cuh"

namespace dflash::cuda {

template <typename T>
__device__ __forceinline__ float product_of_pairs(uint32_t a, uint32_t b) {
  const auto low = [](uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair)}); };
  const auto high = [](uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair >> 16)}); };
  return fmaf(low(a), low(b), high(a) * high(b));
}

// Block (row tile, kv head).
template <typename Traits>
__device__ __forceinline__ void find_terms(const MaskedBackwardLaunch& launch) {
  using T = typename Traits::T;
  constexpr int kLanes = Traits::kChunks;  // of a row, 16 bytes each
  const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
  const int tile = static_cast<int>(blockIdx.x / kv_heads), kv_head = static_cast<int>(blockIdx.x % kv_heads);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int step = 0; step < Traits::kRows; step += Traits::kThreads / kLanes) {
    const int row = tile * Traits::kRows + step + static_cast<int>(threadIdx.x) / kLanes;
    const bool present = row < launch.rows;
    const RowPlace place(launch.tiles, kv_head, present ? row : 0);
    const uint4 grad = reinterpret_cast<const uint4*>(place.in<const T>(launch.op.grad_out))[lane];
    const uint4 out = reinterpret_cast<const uint4*>(place.in<const T>(launch.op.out))[lane];
    float delta = product_of_pairs<T>(grad.x, out.x) + product_of_pairs<T>(grad.y, out.y) +
                  product_of_pairs<T>(grad.z, out.z) + product_of_pairs<T>(grad.w, out.w);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      delta += __shfl_xor_sync(kAllLanes, delta, distance);
    }
    if (lane == 0) {
      // 2^(logit - infinity) = 0: a row that sees nothing, or that does not exist, has no probability anywhere.
      const float lse = present ? *place.in<const float>(launch.op.lse) : kMinusInfinity;
      const bool nothing = lse == kMinusInfinity;
      terms_of_head(launch, kv_head)[row] = {nothing ? INFINITY : lse * kLog2E, nothing ? 0.0f : delta};
    }
  }
}

}  // namespace dflash::cuda
