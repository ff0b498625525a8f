// The shapes of the backward kernels, and which block has which tile.
#pragma once
#include "cuda/common/attention_products.cuh"
#include "cuda/common/attention_traits.cuh"
#include "plan/cuda/masked_block_attention_backward.h"

namespace dflash::cuda {

template <typename T, int kHeadDim>
struct MaskedBackwardTraits : HeadTraits<T, kHeadDim> {
  using Head = HeadTraits<T, kHeadDim>;
  static constexpr int kThreads = kMaskedBackwardThreads, kWarps = kThreads / kWarpLanes;
  static constexpr int kKeys = kMaskedBackwardKeys, kQueryRows = kMaskedBackwardQueryRows;
  static constexpr int kRows = masked_backward_rows(kHeadDim);
  static_assert(kKeys == 16 * kWarps && kQueryRows == 16 * kWarps, "16 keys, or 16 rows, a warp");
  static constexpr int kSumBlocks = 2 * Head::kDimBlocks;  // of 16 x 8 sums of a warp
  static constexpr int kKeyBytes = kKeys * Head::kRowBytes, kRowTileBytes = kRows * Head::kRowBytes;
  // A stage of rows: queries, gradients of outputs, terms.
  static constexpr int kRowStageBytes = 2 * kRowTileBytes + kRows * static_cast<int>(sizeof(MaskedRowTerms));
  static constexpr int kKeyStageBytes = 2 * kKeyBytes;  // keys, values
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

// Tiles of a launch with one block for each (tile, kv head): the heads of a tile next to each other, so that the blocks
// with the longest walks of all heads start first.
__device__ __forceinline__ int head_of_block(const MaskedBackwardLaunch& launch) {
  return static_cast<int>(blockIdx.x % static_cast<uint32_t>(launch.op.kv_heads));
}
__device__ __forceinline__ int tile_of_block(const MaskedBackwardLaunch& launch) {
  return static_cast<int>(blockIdx.x / static_cast<uint32_t>(launch.op.kv_heads));
}

// Where a row of a kv head lies in a tensor with all query heads.
template <typename T>
__device__ __forceinline__ T* row_of_head(const MaskedBackwardLaunch& launch, const HeadRows& tensor, int head,
                                          int row) {
  const uint32_t group = static_cast<uint32_t>(launch.group);
  const int64_t query = static_cast<uint32_t>(row) / group;
  const int64_t query_head = static_cast<int64_t>(head) * group + static_cast<uint32_t>(row) % group;
  return static_cast<T*>(tensor.data) + query * tensor.row_stride + query_head * tensor.head_stride;
}

template <typename T>
__device__ __forceinline__ T* key_of_head(const HeadRows& tensor, int head, int key) {
  return static_cast<T*>(tensor.data) + static_cast<int64_t>(key) * tensor.row_stride + head * tensor.head_stride;
}

__device__ __forceinline__ MaskedRowTerms* terms_of_head(const MaskedBackwardLaunch& launch, int head, int tile_rows) {
  return launch.terms + static_cast<int64_t>(head) * launch.row_tiles * tile_rows;
}

// Some of the keys begin .. end - 1 are among `keys`.
__device__ __forceinline__ bool meets(const MaskedKeys& keys, int begin, int end) {
  return (begin < keys.context_end && end > keys.context_begin) || (begin < keys.block_end && end > keys.block_begin);
}

// All of them are, in one of the two intervals.
__device__ __forceinline__ bool covers(const MaskedKeys& keys, int begin, int end) {
  return (begin >= keys.context_begin && end <= keys.context_end) ||
         (begin >= keys.block_begin && end <= keys.block_end);
}

__device__ __forceinline__ bool sees(const MaskedKeys& keys, int key) { return meets(keys, key, key + 1); }

// Of two rows or tiles together: keys that either sees, where both sides hold what some row sees; empty intervals count
// for nothing.
__device__ __forceinline__ MaskedKeys either(const MaskedKeys& a, const MaskedKeys& b) {
  return {min(a.context_begin, b.context_begin), max(a.context_end, b.context_end), min(a.block_begin, b.block_begin),
          max(a.block_end, b.block_end)};
}

// Keys that both see.
__device__ __forceinline__ MaskedKeys both(const MaskedKeys& a, const MaskedKeys& b) {
  return {max(a.context_begin, b.context_begin), min(a.context_end, b.context_end), max(a.block_begin, b.block_begin),
          min(a.block_end, b.block_end)};
}

constexpr int kLastKey = 0x7fffffff;
// What `either` and `both` start from.
__device__ __forceinline__ MaskedTileKeys no_rows() { return {{kLastKey, 0, kLastKey, 0}, {0, kLastKey, 0, kLastKey}}; }

__device__ __forceinline__ void add_row(MaskedTileKeys& tile, const MaskedKeys& row) {
  MaskedKeys some = row;
  if (row.context_begin >= row.context_end) some.context_begin = kLastKey, some.context_end = 0;
  if (row.block_begin >= row.block_end) some.block_begin = kLastKey, some.block_end = 0;
  tile.any = either(tile.any, some);
  tile.all = both(tile.all, row);
}

// Over the rows of all lanes; every lane gets the result.
__device__ __forceinline__ MaskedTileKeys over_lanes(MaskedTileKeys tile) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    const auto other = [&](const MaskedKeys& keys) {
      return MaskedKeys{__shfl_xor_sync(kAllLanes, keys.context_begin, distance),
                        __shfl_xor_sync(kAllLanes, keys.context_end, distance),
                        __shfl_xor_sync(kAllLanes, keys.block_begin, distance),
                        __shfl_xor_sync(kAllLanes, keys.block_end, distance)};
    };
    tile.any = either(tile.any, other(tile.any));
    tile.all = both(tile.all, other(tile.all));
  }
  return tile;
}

}  // namespace dflash::cuda
