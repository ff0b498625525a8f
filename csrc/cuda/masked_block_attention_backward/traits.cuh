// The shapes of the backward kernels, and where rows and keys lie. The kernels of sm_90a alone
// (cuda/masked_block_attention_backward_sm90a) have traits of their own, by the same names.
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
  // A key tile's keys or values; a stage's keys or values, and its rows' queries or gradients of outputs.
  static constexpr int kKeyBytes = kKeys * Head::kRowBytes;
  static constexpr int kStageRows = kStepRows, kStageKeys = kKeys;
  static constexpr int kStageRowBytes = kStageRows * Head::kRowBytes, kStageKeyBytes = kStageKeys * Head::kRowBytes;
  static constexpr int kKeyStageBytes = 2 * kStageKeyBytes;  // keys, values
  // Queries, gradients of outputs, terms.
  static constexpr int kRowStageBytes = 2 * kStageRowBytes + kStageRows * static_cast<int>(sizeof(MaskedRowTerms));
  static constexpr int64_t kPartialFloats = masked_backward_partial_floats(kHeadDim, kKeys);

  // The threads and warps that own sums.
  static constexpr int kOwners = kThreads;
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ int warp() { return thread() / kWarpLanes; }
};

// A warp's 16 x head_dim sums as mma lays them out: a lane has rows lane / 4 and lane / 4 + 8.
template <typename Traits>
using WarpSums = float[Traits::kSumBlocks][4];

template <typename Traits>
__device__ __forceinline__ void clear_sums(WarpSums<Traits>& sums) {
#pragma unroll
  for (int j = 0; j < Traits::kSumBlocks; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
}

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
  return launch.terms + static_cast<int64_t>(kv_head) * launch.tiles.row_tile_count * launch.tiles.tile_rows;
}

// Which keys the row's query sees, of one kind. Nothing for rows behind the last.
__device__ __forceinline__ KeyStretch seen_by_row(const MaskedBackwardLaunch& launch, int row, bool of_blocks) {
  if (row >= launch.rows) return {0, 0};
  return stretch_of(launch.tiles.query_keys[static_cast<uint32_t>(row) / launch.tiles.group], of_blocks);
}

// Whether one of kCount rows from `first_row` on sees one of the keys, and whether each sees all of them: row i of them
// sees `seen(i)`. Rows behind the last do not count: their operands are zeros. For a whole warp.
struct Sight {
  bool some, all;
};
template <int kCount, typename Seen>
__device__ __forceinline__ Sight sight_of_rows(const MaskedBackwardLaunch& launch, int first_row,
                                               const KeyStretch& keys, const Seen& seen) {
  bool some = false, all = true;
#pragma unroll
  for (int i = 0; i < kCount; i += kWarpLanes) {
    const int number = i + lane_index() % kCount;
    const KeyStretch by_row = seen(number);
    some = some || overlap(by_row, keys);
    all = all && (first_row + number >= launch.rows || contains(by_row, keys));
  }
  return {__any_sync(kAllLanes, some) != 0, __all_sync(kAllLanes, all) != 0};
}

}  // namespace dflash::cuda
