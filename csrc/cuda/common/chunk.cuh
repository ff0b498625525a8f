// A 16-byte chunk of a row of logits in float32 registers.
#pragma once
#include "cuda/common/head_access.cuh"

namespace dflash::cuda {

template <typename T, int kElements>
__device__ __forceinline__ void unpack_chunk(const uint4& chunk, float (&x)[kElements]) {
  static_assert(kElements * sizeof(T) == sizeof(chunk), "all elements of a chunk");
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kElements == 4) {
      x[i] = __uint_as_float(words[i]);
    } else {
      unpack<T>(words[i], x + 2 * i);
    }
  }
}

}  // namespace dflash::cuda
