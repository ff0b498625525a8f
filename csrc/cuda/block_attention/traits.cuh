// The shapes of a kernel.
#pragma once
#include "cuda/common/attention_traits.cuh"
#include "plan/cuda/block_attention.h"

namespace dflash::cuda {

template <typename T_, int kHeadDim_, int kRows_>
struct AttentionTraits : HeadTraits<T_, kHeadDim_> {
  using Head = HeadTraits<T_, kHeadDim_>;
  using Head::kDimBlocks;
  using Head::kHeadDim;
  using Head::kRowBytes;
  static constexpr int kRows = kRows_;                        // of a row tile
  static constexpr int kKeys = attention_key_tile(kHeadDim);  // of a key tile
  static constexpr int kThreads = attention_threads(kHeadDim, kRows), kWarps = kThreads / kWarpLanes;
  // 16 x 16 is what mma multiplies: a warp has kRowBlocks blocks of 16 rows, a key tile kKeyBlocks blocks of 16 keys,
  // a head kDimBlocks blocks of 16 channels.
  static constexpr int kRowBlocks = attention_warp_rows(kHeadDim, kRows) / 16;
  static constexpr int kKeyBlocks = kKeys / 16;
  // Row blocks of the row tile: all warps work where there are few rows.
  static __device__ __forceinline__ int row_block(int of_warp) {
    return of_warp * kWarps + static_cast<int>(threadIdx.x / kWarpLanes);
  }
  // Of a head's kDimBlocks blocks of queries, so many stay in registers beside the sums and scores; the others come
  // from shared memory once a tile.
  static constexpr int kKeptQueries = kRowBlocks == 1 ? (kHeadDim == 256 ? 12 : kDimBlocks) : kHeadDim == 96 ? 4 : 0;

  static constexpr int kTileBytes = kKeys * kRowBytes;  // of keys; as many of values lie behind them in a stage
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;  // in front of the stages

  static constexpr int64_t kPartialFloats = attention_partial_floats(kHeadDim, kRows);
};

}  // namespace dflash::cuda
