// The launches in front of each pass: the order of blocks, what queries and tiles see, and the order in which tiles are
// worked on.
#pragma once
#include "cuda/masked_block_attention/mask.cuh"

namespace dflash::cuda {

// How many of `count` keys come before the one of item `index`: those that are smaller, and equal ones of earlier
// items. For all threads of a block; key_of(i) is asked for i < count only.
template <typename KeyOf>
__device__ __forceinline__ int rank_of(int index, int count, const KeyOf& key_of) {
  __shared__ int keys[kMaskTileThreads];
  const int own = index < count ? key_of(index) : 0;
  int rank = 0;
  for (int first = 0; first < count; first += kMaskTileThreads) {
    const int other = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    if (other < count) keys[threadIdx.x] = key_of(other);
    __syncthreads();
    const int listed = min(kMaskTileThreads, count - first);
    for (int i = 0; i < listed; ++i) rank += keys[i] < own || (keys[i] == own && first + i < index);
  }
  return rank;
}

// order[place] = block, by anchor; padding comes last.
__device__ __forceinline__ void order_blocks(const MaskTilesLaunch& launch) {
  const auto anchor = [&](int block) {
    const int32_t value = launch.op.anchors[block * launch.op.anchors_stride];
    return value < 0 ? INT32_MAX : value;
  };
  const int block = static_cast<int>(blockIdx.x * kMaskTileThreads + threadIdx.x);
  const int count = static_cast<int>(launch.tiles.blocks);
  const int place = rank_of(block, count, anchor);
  if (block < count) launch.tiles.order[place] = block;
}

// What an ordered query sees, and where its document begins (-1: padding).
__device__ __forceinline__ QueryKeys keys_of_query(const MaskTilesLaunch& launch, int ordered, int* document_begin) {
  const MaskedBlockAttentionParams& op = launch.op;
  const MaskTiles& tiles = launch.tiles;
  const int64_t query = query_at(tiles, static_cast<uint32_t>(ordered));
  const bool anchored = op.mode == MaskMode::kAnchor;
  const int64_t position = anchored ? op.anchors[query / op.block_size * op.anchors_stride] : query;
  const Document document = document_at(op, position);
  *document_begin = position < 0 ? -1 : static_cast<int>(document.begin);
  const VisibleKeys seen = visible_keys(op, document.begin, document.end, query);
  QueryKeys keys{static_cast<int32_t>(seen.context_begin), static_cast<int32_t>(seen.context_end), 0, 0};
  if (seen.block_begin < seen.block_end) {
    // From where the block lies to its place in the order.
    const int64_t shift = ordered - (static_cast<int64_t>(tiles.context) + query);
    keys.block_begin = static_cast<int32_t>(seen.block_begin + shift);
    keys.block_end = static_cast<int32_t>(seen.block_end + shift);
  }
  return keys;
}

// A block for each row tile: writes what its queries see and where segments start, and what its rows see together.
__device__ __forceinline__ void describe_row_tile(const MaskTilesLaunch& launch) {
  __shared__ QueryKeys keys[kMostTileRows];
  __shared__ int documents[kMostTileRows];  // where the query's starts; -1: padding
  __shared__ bool starts[kMostTileRows];
  const MaskTiles& tiles = launch.tiles;
  const int row_tile = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int first_row = row_tile * static_cast<int>(tiles.tile_rows), group = static_cast<int>(tiles.group);
  const KeyStretch queries = queries_of_tile(tiles, row_tile);
  const int count = queries.end - queries.begin, query = queries.begin + thread;
  const bool writes = query * group >= first_row;  // else the row tile before does
  if (thread < count) {
    keys[thread] = keys_of_query(launch, query, &documents[thread]);
    if (writes) tiles.query_keys[query] = keys[thread];
  }
  __syncthreads();
  if (thread < count) {
    // Later queries' contexts end no earlier: there is a gap where one begins behind the ends of all before.
    int end = 0;
    for (int i = 0; i < thread; ++i) {
      if (documents[i] == documents[thread]) end = max(end, keys[i].context_end);
    }
    const bool gap = !stretch_of(keys[thread], false).empty() && end > 0 && keys[thread].context_begin > end;
    starts[thread] = thread == 0 || documents[thread] != documents[thread - 1] || gap;
    if (writes) tiles.segment_starts[query] = starts[thread] ? 1 : 0;
  }
  __syncthreads();
  int visits = 0, live = 0;
  if (thread < count && starts[thread]) {
    SeenByRows seen[2] = {SeenByRows::none(), SeenByRows::none()};
    for (int i = thread; i < count && (i == thread || !starts[i]); ++i) {
      for (int of_blocks = 0; of_blocks < 2; ++of_blocks) seen[of_blocks].add(stretch_of(keys[i], of_blocks != 0));
    }
    for (int of_blocks = 0; of_blocks < 2; ++of_blocks) {
      if (seen[of_blocks].any.empty()) continue;
      const TileStretch stretch(tiles, seen[of_blocks].any, of_blocks != 0);
      visits += stretch.end - stretch.first;
    }
  }
  // Every warp finds the same.
  SeenByRows seen[2] = {SeenByRows::none(), SeenByRows::none()};
  for (int i = thread % kWarpLanes; i < count; i += kWarpLanes) {
    for (int of_blocks = 0; of_blocks < 2; ++of_blocks) seen[of_blocks].add(stretch_of(keys[i], of_blocks != 0));
  }
  int within = 0;
  for (int of_blocks = 0; of_blocks < 2; ++of_blocks) {
    seen[of_blocks] = seen[of_blocks].of_warp();
    const TileStretch stretch(tiles, seen[of_blocks].any, of_blocks != 0);
    within += stretch.end - stretch.first;
    for (int tile = stretch.first + thread; tile < stretch.end; tile += kMaskTileThreads) {
      const KeyStretch of_tile = keys_of_tile(tiles, tile);
      bool sees = false;
      for (int i = 0; i < count && !sees; ++i) sees = overlap(stretch_of(keys[i], of_blocks != 0), of_tile);
      live += sees ? 1 : 0;
    }
  }
  const auto sum = [](int a, int b) { return a + b; };
  live = block_reduce<kMaskTileThreads>(live, 0, sum);
  __syncthreads();
  visits = block_reduce<kMaskTileThreads>(visits, 0, sum);
  if (thread == 0) {
    const KeyStretch &context = seen[0].any, &blocks = seen[1].any;
    tiles.row_tiles[row_tile] = {
        {context.begin, context.end, blocks.begin, blocks.end}, visits, live == within ? 0 : 1, {0, 0}};
  }
}

// A block for each key tile: writes which row tiles see it.
__device__ __forceinline__ void describe_key_tile(const MaskTilesLaunch& launch) {
  const MaskTiles& tiles = launch.tiles;
  const int key_tile = static_cast<int>(blockIdx.x), row_tiles = static_cast<int>(tiles.row_tile_count);
  int first = INT32_MAX, end = 0, live = 0;
  for (int row_tile = static_cast<int>(threadIdx.x); row_tile < row_tiles; row_tile += kMaskTileThreads) {
    if (!is_live_to(0, 1, tiles, row_tile, tiles.row_tiles[row_tile], key_tile)) continue;
    first = min(first, row_tile);
    end = row_tile + 1;
    ++live;
  }
  first = block_reduce<kMaskTileThreads>(first, INT32_MAX, [](int a, int b) { return min(a, b); });
  __syncthreads();
  end = block_reduce<kMaskTileThreads>(end, 0, [](int a, int b) { return max(a, b); });
  __syncthreads();
  live = block_reduce<kMaskTileThreads>(live, 0, [](int a, int b) { return a + b; });
  if (threadIdx.x == 0) {
    first = min(first, end);
    tiles.key_tiles[key_tile] = {first, end, live, live == end - first ? 0 : 1};
  }
}

// Row tiles (blockIdx.y = 0) and key tiles (1) in the order in which they are worked on.
__device__ __forceinline__ void schedule_tiles(const MaskTilesLaunch& launch) {
  const MaskTiles& tiles = launch.tiles;
  const bool of_keys = blockIdx.y != 0;
  const int count = static_cast<int>(of_keys ? tiles.key_tile_count : tiles.row_tile_count);
  const int tile = static_cast<int>(blockIdx.x * kMaskTileThreads + threadIdx.x);
  const int place = rank_of(
      tile, count, [&](int i) { return -(of_keys ? tiles.key_tiles[i].live_tiles : tiles.row_tiles[i].live_tiles); });
  if (tile < count) (of_keys ? tiles.key_schedule : tiles.row_schedule)[place] = tile;
}

}  // namespace dflash::cuda
