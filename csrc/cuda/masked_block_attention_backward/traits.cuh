// The shapes of the backward kernels, and where rows and keys lie.
#pragma once
#include "cuda/common/attention_products.cuh"
#include "cuda/common/attention_traits.cuh"
#include "cuda/masked_block_attention/mask.cuh"
#include "plan/cuda/masked_block_attention_backward.h"

namespace dflash::cuda {

template <typename T, int kHeadDim>
struct MaskedBackwardTraits : HeadTraits<T, kHeadDim> {
  using Head = HeadTraits<T, kHeadDim>;
  static constexpr int kThreads = kMaskedBackwardThreads, kWarps = kThreads / kWarpLanes;
  static constexpr int kKeys = kMaskedBackwardKeys, kRows = kMaskedBackwardRows;  // of tiles
  // Of a tile, what meets a warp's own rows or keys at once.
  static constexpr int kStepRows = masked_backward_step(kHeadDim), kStepKeys = masked_backward_step(kHeadDim);
  static_assert(kKeys == 16 * kWarps && kRows == 16 * kWarps, "16 keys, or 16 rows, a warp");
  static constexpr int kSumBlocks = 2 * Head::kDimBlocks;  // of 16 x 8 sums of a warp
  static constexpr int kKeyBytes = kKeys * Head::kRowBytes, kStepBytes = kStepRows * Head::kRowBytes;
  static constexpr int kKeyStageBytes = 2 * kKeyBytes;  // keys, values
  // Queries, gradients of outputs, terms.
  static constexpr int kStepStageBytes = 2 * kStepBytes + kStepRows * static_cast<int>(sizeof(MaskedRowTerms));
  static constexpr int64_t kPartialFloats = masked_backward_partial_floats(kHeadDim);
};

// A warp's 16 x head_dim sums as mma lays them out: a lane has rows lane / 4 and lane / 4 + 8.
template <typename Traits>
using WarpSums = float[Traits::kSumBlocks][4];

template <typename Traits>
__device__ __forceinline__ void clear_sums(WarpSums<Traits>& sums) {
#pragma unroll
  for (int j = 0; j < Traits::kSumBlocks; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
}

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpLanes; }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpLanes; }

// A row of a kv head: which query it is, and which of all heads.
struct RowPlace {
  int64_t query, head;

  __device__ __forceinline__ RowPlace(const MaskTiles& tiles, int kv_head, int row)
      : query(query_at(tiles, static_cast<uint32_t>(row) / tiles.group)),
        head(static_cast<int64_t>(kv_head) * tiles.group + static_cast<uint32_t>(row) % tiles.group) {}
  template <typename T>
  __device__ __forceinline__ T* in(const HeadRows& tensor) const {
    return static_cast<T*>(tensor.data) + query * tensor.row_stride + head * tensor.head_stride;
  }
};

__device__ __forceinline__ MaskedRowTerms* terms_of_head(const MaskedBackwardLaunch& launch, int kv_head) {
  return launch.terms + static_cast<int64_t>(kv_head) * launch.tiles.row_tile_count * kMaskedBackwardRows;
}

// Which keys the row's query sees, of one kind. Nothing for rows behind the last.
__device__ __forceinline__ KeyStretch seen_by_row(const MaskedBackwardLaunch& launch, int row, bool of_blocks) {
  if (row >= launch.rows) return {0, 0};
  return stretch_of(launch.tiles.query_keys[static_cast<uint32_t>(row) / launch.tiles.group], of_blocks);
}

// Whether one of kCount rows from `first_row` on sees one of the keys, and whether each sees all of them. Rows behind
// the last do not count: their operands are zeros. For a whole warp.
struct Sight {
  bool some, all;
};
template <int kCount>
__device__ __forceinline__ Sight sight_of_rows(const MaskedBackwardLaunch& launch, int first_row, bool of_blocks,
                                               const KeyStretch& keys) {
  bool some = false, all = true;
#pragma unroll
  for (int i = 0; i < kCount; i += kWarpLanes) {
    const int row = first_row + i + lane_index() % kCount;
    const KeyStretch seen = seen_by_row(launch, row, of_blocks);
    some = some || overlap(seen, keys);
    all = all && (row >= launch.rows || contains(seen, keys));
  }
  return {__any_sync(kAllLanes, some) != 0, __all_sync(kAllLanes, all) != 0};
}

}  // namespace dflash::cuda
