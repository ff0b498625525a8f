// What of a tile is seen, from what plan_mask_tiles' launches wrote down: which tiles are alive, whether one needs a
// mask, and which keys of one a row sees. The modes' rules are in params/masked_block_attention.h and nowhere else.
#pragma once
#include "cuda/common/reduce.cuh"
#include "plan/cuda/masked_block_attention.h"

namespace dflash::cuda {

// A stretch of context keys, or of ordered block keys.
struct KeyStretch {
  int begin, end;
  __device__ __forceinline__ bool empty() const { return begin >= end; }
};

__device__ __forceinline__ KeyStretch stretch_of(const QueryKeys& keys, bool of_blocks) {
  return of_blocks ? KeyStretch{keys.block_begin, keys.block_end} : KeyStretch{keys.context_begin, keys.context_end};
}

__device__ __forceinline__ bool overlap(const KeyStretch& a, const KeyStretch& b) {
  return max(a.begin, b.begin) < min(a.end, b.end);
}

__device__ __forceinline__ bool contains(const KeyStretch& outer, const KeyStretch& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// ---- Where things lie

// Key tiles from context_tiles on hold the blocks' own keys.
__device__ __forceinline__ bool holds_blocks(const MaskTiles& tiles, int key_tile) {
  return key_tile >= static_cast<int>(tiles.context_tiles);
}

// The keys of a key tile, context keys or ordered block keys; the last tile of either kind is cut off.
__device__ __forceinline__ KeyStretch keys_of_tile(const MaskTiles& tiles, int key_tile) {
  const bool of_blocks = holds_blocks(tiles, key_tile);
  const int tile = key_tile - (of_blocks ? static_cast<int>(tiles.context_tiles) : 0);
  const int begin = tile * static_cast<int>(tiles.tile_keys);
  const int end = static_cast<int>(of_blocks ? tiles.queries : tiles.context);
  return {begin, min(begin + static_cast<int>(tiles.tile_keys), end)};
}

// Key tiles of one kind that hold a stretch.
struct TileStretch {
  int first, end;
  __device__ __forceinline__ TileStretch(const MaskTiles& tiles, const KeyStretch& keys, bool of_blocks) {
    const int size = static_cast<int>(tiles.tile_keys);
    const int before = of_blocks ? static_cast<int>(tiles.context_tiles) : 0;
    first = before + keys.begin / size;
    end = keys.empty() ? first : before + (keys.end + size - 1) / size;
  }
};

// Ordered queries that have rows in a row tile.
__device__ __forceinline__ KeyStretch queries_of_rows(const MaskTiles& tiles, int first_row, int end_row) {
  const int group = static_cast<int>(tiles.group);
  const int end = min(end_row, static_cast<int>(tiles.queries * tiles.group));
  return {first_row / group, (end + group - 1) / group};
}
__device__ __forceinline__ KeyStretch queries_of_tile(const MaskTiles& tiles, int row_tile) {
  const int first_row = row_tile * static_cast<int>(tiles.tile_rows);
  return queries_of_rows(tiles, first_row, first_row + static_cast<int>(tiles.tile_rows));
}

// The query at a place of the order: its row in q, out, lse ...
__device__ __forceinline__ uint32_t query_at(const MaskTiles& tiles, uint32_t ordered) {
  if (tiles.blocks == 0) return ordered;
  const uint32_t block = ordered / tiles.block_size;
  return static_cast<uint32_t>(tiles.order[block]) * tiles.block_size + ordered % tiles.block_size;
}

// The row of k and v that holds a context key or an ordered block key.
__device__ __forceinline__ uint32_t key_row(const MaskTiles& tiles, bool of_blocks, uint32_t key) {
  return of_blocks ? tiles.context + query_at(tiles, key) : key;
}

// ---- Tiles

// Whether some row of the row tile sees some key of the key tile. `threads` threads ask about the same two tiles, this
// one as number `thread`; the tiles are alive if one of them gets true.
__device__ __forceinline__ bool is_live_to(int thread, int threads, const MaskTiles& tiles, int row_tile,
                                           const RowTile& seen, int key_tile) {
  const bool of_blocks = holds_blocks(tiles, key_tile);
  const KeyStretch keys = keys_of_tile(tiles, key_tile);
  if (!overlap(stretch_of(seen.seen, of_blocks), keys)) return false;
  if (seen.gaps == 0) return true;
  const KeyStretch queries = queries_of_tile(tiles, row_tile);
  bool sees = false;
  for (int query = queries.begin + thread; query < queries.end && !sees; query += threads) {
    sees = overlap(stretch_of(tiles.query_keys[query], of_blocks), keys);
  }
  return sees;
}
// For all lanes of a warp, with the same arguments.
__device__ __forceinline__ bool is_live(const MaskTiles& tiles, int row_tile, const RowTile& seen, int key_tile) {
  const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
  return __any_sync(kAllLanes, is_live_to(lane, kWarpLanes, tiles, row_tile, seen, key_tile));
}

// The end of the segment that starts with ordered query `begin` in a row tile whose queries end at `end`. For all lanes
// of a warp.
__device__ __forceinline__ int segment_end(const MaskTiles& tiles, int begin, int end) {
  for (int first = begin + 1; first < end; first += kWarpLanes) {
    const int query = first + static_cast<int>(threadIdx.x % kWarpLanes);
    const uint32_t starts = __ballot_sync(kAllLanes, query < end && tiles.segment_starts[query] != 0);
    if (starts != 0) return first + __ffs(static_cast<int>(starts)) - 1;
  }
  return end;
}

// What several rows see: the hull of their stretches, and their intersection.
struct SeenByRows {
  KeyStretch any, all;

  static __device__ __forceinline__ SeenByRows none() { return {{INT32_MAX, 0}, {0, INT32_MAX}}; }
  __device__ __forceinline__ void add(const KeyStretch& row) {
    if (!row.empty()) any = {min(any.begin, row.begin), max(any.end, row.end)};
    all = {max(all.begin, row.begin), min(all.end, row.end)};
  }
  // Of the rows of all lanes. A hull without keys is 0, 0.
  __device__ __forceinline__ SeenByRows of_warp() const {
    const auto least = [](int a, int b) { return min(a, b); };
    const auto most = [](int a, int b) { return max(a, b); };
    SeenByRows result{{warp_reduce(any.begin, least), warp_reduce(any.end, most)},
                      {warp_reduce(all.begin, most), warp_reduce(all.end, least)}};
    if (result.any.empty()) result.any = {0, 0};
    return result;
  }
};

// The hull of what a segment's queries see. For all lanes of a warp.
__device__ __forceinline__ QueryKeys keys_of_segment(const MaskTiles& tiles, const KeyStretch& queries) {
  SeenByRows context = SeenByRows::none(), blocks = SeenByRows::none();
  for (int query = queries.begin + static_cast<int>(threadIdx.x % kWarpLanes); query < queries.end;
       query += kWarpLanes) {
    const QueryKeys keys = tiles.query_keys[query];
    context.add(stretch_of(keys, false));
    blocks.add(stretch_of(keys, true));
  }
  context = context.of_warp();
  blocks = blocks.of_warp();
  return {context.any.begin, context.any.end, blocks.any.begin, blocks.any.end};
}

// The live key tiles of a segment, ascending, by number.
//
//   for (int i = 0; i < walk.count(); ++i) walk.tile(i) ...
class KeyTileWalk {
 public:
  KeyTileWalk() = default;  // for shared memory
  __device__ __forceinline__ KeyTileWalk(const MaskTiles& tiles, const QueryKeys& seen) {
    const TileStretch context(tiles, stretch_of(seen, false), false), blocks(tiles, stretch_of(seen, true), true);
    context_first_ = context.first;
    context_count_ = context.end - context.first;
    blocks_first_ = blocks.first;
    count_ = context_count_ + blocks.end - blocks.first;
  }
  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int tile(int i) const {
    return i < context_count_ ? context_first_ + i : blocks_first_ + (i - context_count_);
  }

 private:
  int context_first_, context_count_, blocks_first_, count_;
};

// The live row tiles of a key tile, ascending. For all lanes of a warp.
//
//   for (int tile = walk.first(); tile < walk.end(); tile = walk.after(tile)) ...
class RowTileWalk {
 public:
  __device__ __forceinline__ RowTileWalk(const MaskTiles& tiles, int key_tile, const KeyTile& seen)
      : tiles_(tiles), seen_(seen), key_tile_(key_tile) {}
  __device__ __forceinline__ int first() const { return live_from(seen_.first_row_tile); }
  __device__ __forceinline__ int end() const { return seen_.end_row_tile; }
  __device__ __forceinline__ int after(int row_tile) const { return live_from(row_tile + 1); }

 private:
  __device__ __forceinline__ int live_from(int row_tile) const {
    if (seen_.gaps == 0) return row_tile;
    while (row_tile < seen_.end_row_tile && !is_live(tiles_, row_tile, tiles_.row_tiles[row_tile], key_tile_)) {
      ++row_tile;
    }
    return row_tile;
  }

  const MaskTiles& tiles_;
  const KeyTile& seen_;
  int key_tile_;
};

}  // namespace dflash::cuda
