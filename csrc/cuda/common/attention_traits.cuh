// What tensor-core attention kernels have in common of their shapes: products of 16-bit values, and how rows of one
// head lie in shared memory.
#pragma once
#include <type_traits>

#include "cuda/common/ptx.cuh"
#include "cuda/common/reduce.cuh"
#include "params/dtype.h"

namespace dflash::cuda {

template <typename T_, int kHeadDim_>
struct HeadTraits {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kDimBlocks = kHeadDim / 16;  // of 16 channels, what one mma takes

  // 16-byte chunks of a row. Lanes that copy a row sit next to each other and cover 128 bytes of it, a whole line of
  // memory, or 64 bytes where the row is no multiple of that.
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowLanes = kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kCopyRows = kWarpLanes / kRowLanes;  // that a warp copies at once

  static constexpr int kRowBytes = kHeadDim * 2;

  static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, Float16>) {
      multiply_f16(sums, a, b0, b1);
    } else {
      multiply_bf16(sums, a, b0, b1);
    }
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return std::is_same_v<T, Float16> ? f16x2_from_floats(low, high) : bf16x2_from_floats(low, high);
  }

  // Where a row's chunk lies in a tile. Chunks change places within a row, so that the same chunk of eight rows, which
  // ldmatrix reads together, covers all 32 banks: rows of 128 bytes or a multiple start at the same bank, and eight
  // orders tell eight of them apart; rows of 192 bytes start at one of two banks, and four orders do.
  static __device__ __forceinline__ uint32_t place(int row, int chunk) {
    const int order = kChunks % 8 == 0 ? row % 8 : row / 2 % 4;
    return row * kRowBytes + (chunk ^ order) * 16;
  }
};

}  // namespace dflash::cuda
