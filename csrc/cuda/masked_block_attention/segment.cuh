// Segments of a row tile, as every warp finds them, and what rows of one see.
#pragma once
#include "cuda/masked_block_attention/mask.cuh"

namespace dflash::cuda {

// A segment's part of a row tile.
struct SegmentWork {
  QueryKeys seen;  // the hull of what its rows see
  int begin, end;  // its rows, counted from first_row
  int first_row;   // of the row tile, among all rows of the kv head
  uint32_t kv_head;
  int next_segment;  // the query with which it starts, counted from the row tile's first
  int is_last;       // there is no next one
};

// The segment that starts with query `begin` of a row tile. `unit`: a row tile and kv head, those with the most live
// key tiles first. For all lanes of a warp.
template <typename Traits>
__device__ __forceinline__ SegmentWork find_segment(const MaskedAttentionLaunch& launch, uint32_t unit, int begin) {
  const MaskTiles& tiles = launch.tiles;
  const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
  const int row_tile = tiles.row_schedule[unit / kv_heads], group = static_cast<int>(tiles.group);
  const KeyStretch queries = queries_of_tile(tiles, row_tile);
  const int first = queries.begin + begin, end = segment_end(tiles, first, queries.end);
  const QueryKeys seen = keys_of_segment(tiles, {first, end});
  const int first_row = row_tile * Traits::kRows, rows = static_cast<int>(tiles.queries) * group - first_row;
  return {seen,
          max(0, first * group - first_row),
          min(min(Traits::kRows, rows), end * group - first_row),
          first_row,
          unit % kv_heads,
          end - queries.begin,
          end == queries.end ? 1 : 0};
}

// What rows see of context keys, and of block keys.
struct RowSight {
  SeenByRows context, blocks;
  __device__ __forceinline__ SeenByRows of(bool of_blocks) const { return of_blocks ? blocks : context; }
};

// Of kRows rows from `first` on, those that are the segment's. For all lanes of a warp.
template <int kRows>
__device__ __forceinline__ RowSight find_sight(const MaskTiles& tiles, const SegmentWork& work, int first) {
  RowSight sight{SeenByRows::none(), SeenByRows::none()};
#pragma unroll
  for (int i = 0; i < kRows; i += kWarpLanes) {
    const int of_rows = i + static_cast<int>(threadIdx.x % kWarpLanes), row = first + of_rows;
    if (of_rows < kRows && row >= work.begin && row < work.end) {
      const QueryKeys keys = tiles.query_keys[(work.first_row + row) / static_cast<int>(tiles.group)];
      sight.context.add(stretch_of(keys, false));
      sight.blocks.add(stretch_of(keys, true));
    }
  }
  return {sight.context.of_warp(), sight.blocks.of_warp()};
}

}  // namespace dflash::cuda
