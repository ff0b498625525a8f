// The shapes of the forward pass by warpgroups.
#pragma once
#include "cuda/common/attention_traits.cuh"
#include "cuda/common/warpgroup.cuh"
#include "plan/cuda/masked_block_attention.h"

namespace dflash::cuda {

template <typename T_, int kHeadDim_>
struct WarpgroupTraits : HeadTraits<T_, kHeadDim_> {
  using Head = HeadTraits<T_, kHeadDim_>;
  using Head::kDimBlocks;
  using Head::kHeadDim;
  using Head::kRowBytes;
  static constexpr int kRows = masked_attention_rows(kHeadDim);  // of a row tile
  static constexpr int kKeys = kWarpgroupAttentionKeys;          // of a key tile
  static_assert(kKeys == kTileRows, "a key tile is one of wgmma's tiles");
  static constexpr int kThreads = kWarpgroupAttentionThreads;
  // The first warpgroup copies, the others have kTileRows rows each, a warp 16 of them.
  static constexpr int kCopyWarps = kWarpgroupThreads / kWarpLanes;
  static constexpr int kAttendingWarps = kThreads / kWarpLanes - kCopyWarps;
  static constexpr int kWarpRows = 16, kRowBlocks = 1;
  static_assert(kAttendingWarps * kWarpRows == kRows, "a warp for 16 rows");
  static __device__ __forceinline__ int row_block(int) {
    return static_cast<int>(threadIdx.x / kWarpLanes) - kCopyWarps;
  }
  static constexpr int kKeyBlocks = kKeys / 16;
  static constexpr int kKeptQueries = kDimBlocks;  // all of them in registers

  static __device__ __forceinline__ uint32_t place(int row, int chunk) { return place_in_panels<kHeadDim>(row, chunk); }
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of keys; as many of values lie behind them in a stage
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;  // in front of the stages
};

}  // namespace dflash::cuda
