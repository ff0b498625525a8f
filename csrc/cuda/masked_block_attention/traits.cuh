// The shapes of the forward pass.
#pragma once
#include "cuda/common/attention_traits.cuh"
#include "plan/cuda/masked_block_attention.h"

namespace dflash::cuda {

template <typename T_, int kHeadDim_>
struct MaskedTraits : HeadTraits<T_, kHeadDim_> {
  using Head = HeadTraits<T_, kHeadDim_>;
  using Head::kDimBlocks;
  using Head::kHeadDim;
  using Head::kRowBytes;
  static constexpr int kRows = masked_attention_rows(kHeadDim);  // of a row tile
  static constexpr int kKeys = masked_attention_keys(kHeadDim);  // of a key tile
  static constexpr int kThreads = kMaskedAttentionThreads, kWarps = kThreads / kWarpLanes;
  static constexpr int kCopyWarps = kWarps;  // that copy key tiles
  // A warp has 32 rows next to each other, so that they see nearly the same: two blocks of 16.
  static constexpr int kWarpRows = kRows / kWarps, kRowBlocks = kWarpRows / 16;
  static_assert(kWarpRows == kWarpLanes, "a lane looks after the mask of one row");
  static __device__ __forceinline__ int row_block(int of_warp) {
    return static_cast<int>(threadIdx.x / kWarpLanes) * kRowBlocks + of_warp;
  }
  static constexpr int kKeyBlocks = kKeys / 16;
  // Of a head's kDimBlocks blocks of queries, so many stay in registers; the others come from shared memory once a
  // tile.
  static constexpr int kKeptQueries = kHeadDim == 64 ? kDimBlocks : 0;

  static constexpr int kTileBytes = kKeys * kRowBytes;  // of keys; as many of values lie behind them in a stage
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;  // in front of the stages
};

}  // namespace dflash::cuda
