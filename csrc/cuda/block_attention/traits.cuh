// The shapes of a kernel, and how tiles of keys, values and queries lie in shared memory.
#pragma once
#include <type_traits>

#include "cuda/common/ptx.cuh"
#include "cuda/common/reduce.cuh"
#include "plan/cuda/block_attention.h"

namespace dflash::cuda {

template <typename T_, int kHeadDim_, int kRows_>
struct AttentionTraits {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_, kRows = kRows_;  // rows of a row tile
  static constexpr int kKeys = attention_key_tile(kHeadDim);  // of a key tile
  static constexpr int kThreads = attention_threads(kHeadDim, kRows), kWarps = kThreads / kWarpLanes;
  // 16 x 16 is what mma multiplies: a warp has kRowBlocks blocks of 16 rows, a key tile kKeyBlocks blocks of 16 keys,
  // a head kDimBlocks blocks of 16 channels.
  static constexpr int kRowBlocks = attention_warp_rows(kHeadDim, kRows) / 16;
  static constexpr int kKeyBlocks = kKeys / 16, kDimBlocks = kHeadDim / 16;
  // Of a head's kDimBlocks blocks of queries, so many stay in registers beside the sums and scores; the others come
  // from shared memory once a tile.
  static constexpr int kKeptQueries = kRowBlocks == 1 ? (kHeadDim == 256 ? 12 : kDimBlocks) : kHeadDim == 96 ? 6 : 0;

  // 16-byte chunks of a row. Lanes that copy a row sit next to each other and cover 128 bytes of it, a whole line of
  // memory, or 64 bytes where the row is no multiple of that.
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowLanes = kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kCopyRows = kWarpLanes / kRowLanes;  // that a warp copies at once

  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of keys; as many of values lie behind them in a stage
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;  // in front of the stages

  static constexpr int64_t kPartialFloats = attention_partial_floats(kHeadDim, kRows);

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
