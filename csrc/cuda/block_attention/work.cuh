// Which rows and which keys are a block's.
#pragma once
#include "cuda/common/reduce.cuh"
#include "plan/cuda/block_attention.h"

namespace dflash::cuda {

// Positions that a row sees.
struct VisibleKeys {
  int begin, end;
};

struct AttentionWork {
  int request, first_token;     // of the request's rows in q
  int context_len, block_len;   // that are seen; keys are at positions 0 .. context_len + block_len - 1
  int first_row, rows;          // of the request, in this row tile
  VisibleKeys unmasked;         // that each of them sees
  VisibleKeys keys;             // of all rows together
  int first_tile, end_tile;     // key tiles of this split
  int first_split, last_split;  // of the request's splits, those that see keys of this row tile
};

__device__ __forceinline__ VisibleKeys visible_keys(const BlockAttentionLaunch& launch, const AttentionWork& work,
                                                    int index) {
  const int position = work.context_len + index, end = work.context_len + work.block_len;
  VisibleKeys keys{0, end};
  if (launch.window > 0 && position >= launch.window) keys.begin = position - launch.window + 1;
  if (launch.op.causal) {
    keys.end = position + 1;
  } else if (launch.window > 0 && end - position > launch.window) {
    keys.end = position + launch.window;
  }
  return keys;
}

// The request and row tile of blockIdx.x. For a whole warp. False where there are fewer row tiles.
template <int kRows>
__device__ __forceinline__ bool find_rows(const BlockAttentionLaunch& launch, AttentionWork& work) {
  const int group = static_cast<int>(launch.group);
  if (launch.request_tiles > 0) {
    const int tile = static_cast<int>(blockIdx.x % launch.request_tiles);
    work.request = static_cast<int>(blockIdx.x / launch.request_tiles);
    work.block_len = static_cast<int>(launch.request_rows) / group;
    work.first_token = work.request * work.block_len;
    work.first_row = tile * kRows;
  } else {
    // 32 requests at a time, one a lane, until they hold this row tile.
    const BlockAttentionParams& op = launch.op;
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes), batch = static_cast<int>(op.batch);
    int before = 0;  // row tiles of earlier requests
    for (int first = 0;; first += kWarpLanes) {
      if (first >= batch) return false;
      const int request = first + lane;
      int begin = 0, length = 0;
      if (request < batch) {
        // Bounds that no one could check lead to no other rows.
        const int tokens = static_cast<int>(op.tokens);
        begin = min(max(0, op.cu_block_lens[request * op.cu_block_lens_stride]), tokens);
        length = max(0, min(op.cu_block_lens[(request + 1) * op.cu_block_lens_stride], tokens) - begin);
      }
      const int tiles = (length * group + kRows - 1) / kRows;
      int up_to = tiles;  // row tiles of this lane's requests and the earlier ones among the 32
#pragma unroll
      for (int distance = 1; distance < kWarpLanes; distance *= 2) {
        const int lower = __shfl_up_sync(kAllLanes, up_to, distance);
        if (lane >= distance) up_to += lower;
      }
      const uint32_t reached = __ballot_sync(kAllLanes, before + up_to > static_cast<int>(blockIdx.x));
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        work.request = first + found;
        work.first_token = __shfl_sync(kAllLanes, begin, found);
        work.block_len = __shfl_sync(kAllLanes, length, found);
        const int first_of_request = before + __shfl_sync(kAllLanes, up_to - tiles, found);
        work.first_row = (static_cast<int>(blockIdx.x) - first_of_request) * kRows;
        break;
      }
      before += __shfl_sync(kAllLanes, up_to, kWarpLanes - 1);
    }
  }
  work.rows = min(kRows, work.block_len * group - work.first_row);
  return true;
}

// For a whole warp. False where there is nothing to do.
template <int kRows, int kKeys, typename Context>
__device__ __forceinline__ bool find_work(const BlockAttentionLaunch& launch, Context& context, AttentionWork& work) {
  if (!find_rows<kRows>(launch, work)) return false;
  const BlockAttentionParams& op = launch.op;
  // A length that no one could check leads past no table.
  const int context_len = min(max(0, op.context_lens[work.request * op.context_lens_stride]), launch.capacity);
  work.context_len = context.find(launch, work.request, context_len);
  const int group = static_cast<int>(launch.group);
  // Both bounds rise from row to row.
  const VisibleKeys top = visible_keys(launch, work, work.first_row / group);
  const VisibleKeys bottom = visible_keys(launch, work, (work.first_row + work.rows - 1) / group);
  work.keys = {top.begin, bottom.end};
  work.unmasked = {bottom.begin, top.end};
  // The request's keys are cut, not the row tile's, so that the cuts do not depend on how rows are tiled.
  const int request_first = visible_keys(launch, work, 0).begin / kKeys;
  const int request_end = (work.context_len + work.block_len + kKeys - 1) / kKeys;
  const int splits = static_cast<int>(launch.splits);
  const int tiles = max(static_cast<int>(launch.least_tiles), (request_end - request_first + splits - 1) / splits);
  const int first = work.keys.begin / kKeys, end = (work.keys.end + kKeys - 1) / kKeys;
  work.first_split = (first - request_first) / tiles;
  work.last_split = (end - 1 - request_first) / tiles;
  const int split = static_cast<int>(blockIdx.z);
  work.first_tile = max(first, request_first + split * tiles);
  work.end_tile = min(end, request_first + (split + 1) * tiles);
  return work.first_split <= split && split <= work.last_split;
}

}  // namespace dflash::cuda
