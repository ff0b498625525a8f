// How masked_block_attention spreads over a GPU. Where anchors and documents lie is data on the device, so the launches
// in front of each pass (plan_mask_tiles) write down what each tile sees, and the pass walks only tiles that are alive.
//
// Order: anchor blocks count in the order of their anchors, padding last, so that neighbours see nearly the same
// context; elsewhere queries keep theirs. Everything below counts ordered queries.
//
// Rows: row = ordered query * group + head of the GQA group, so all heads of a group share one sweep over K and V. A
// row tile is a stretch of `tile_rows` rows. It is worked on segment by segment: runs of queries of one document whose
// contexts touch. Within a segment's hull every key is seen by one of its rows, and no row ever meets what another
// document holds (a weight of zero times NaN would be NaN).
//
// Keys: context keys, or all keys where there are no anchors, lie in key tiles 0 .. context_tiles - 1 of `tile_keys`
// each; the blocks' own keys follow, in the order of blocks, in tiles of their own. What a query sees is one stretch of
// context keys and one of its block's.
#pragma once
#include <vector>

#include "params/masked_block_attention.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

// What a query sees: stretches of context keys and of ordered block keys; 0, 0 where there is none.
struct alignas(16) QueryKeys {
  int32_t context_begin, context_end;
  int32_t block_begin, block_end;
};

// What the rows of a row tile see.
struct alignas(16) RowTile {
  QueryKeys seen;      // by any row, and perhaps what lies between
  int32_t live_tiles;  // (segment, key tile) pairs in which some row sees some key
  int32_t gaps;        // not 0: some key tiles within `seen` are dead
  int32_t unused[2];
};

// Which row tiles see keys of a key tile.
struct alignas(16) KeyTile {
  int32_t first_row_tile, end_row_tile;
  int32_t live_tiles;  // row tiles
  int32_t gaps;        // not 0: row tiles between the first and the last are dead
};

// A part of every launch's parameters. The arrays are written by plan_mask_tiles' launches.
struct MaskTiles {
  int32_t* order;           // [blocks]: the block at each place; null without anchors
  QueryKeys* query_keys;    // [queries]
  int32_t* segment_starts;  // [queries]: not 0 where a segment starts within a row tile
  RowTile* row_tiles;       // [row_tile_count]
  int32_t* row_schedule;    // [row_tile_count]: row tiles, those with the most live key tiles first
  KeyTile* key_tiles;       // [key_tile_count]; these two null unless asked for
  int32_t* key_schedule;    // [key_tile_count]: key tiles, those with the most live row tiles first
  uint32_t tile_rows, tile_keys;
  uint32_t row_tile_count, key_tile_count;
  uint32_t context_tiles;    // key tiles in front of the blocks' own
  uint32_t queries, blocks;  // blocks: 0 without anchors
  uint32_t context;          // keys in front of the blocks' own
  uint32_t group, block_size;
};

struct MaskTilesLaunch {
  MaskedBlockAttentionParams op;
  MaskTiles tiles;
};

constexpr int kMostTileRows = 128;

struct MaskTileShape {
  int64_t rows, keys;   // of a tile; at most kMostTileRows rows
  bool with_key_tiles;  // for passes whose blocks own key tiles
};

constexpr int kMaskTileThreads = 128;  // of every block of plan_mask_tiles' launches

// Workspace of plan_mask_tiles, a multiple of 16 bytes.
int64_t mask_tiles_bytes(const MaskedBlockAttentionParams& params, const MaskTileShape& shape);

// The launches that fill `tiles`, to run in this order before the pass. `workspace` need not be zeroed. Throws
// std::invalid_argument where there are more rows or keys than 32 bits count.
std::vector<LaunchPlan> plan_mask_tiles(const MaskedBlockAttentionParams& params, const MaskTileShape& shape,
                                        void* workspace, MaskTiles* tiles);

// ---- Forward pass

// The forward pass' shapes, by head_dim.
constexpr int masked_attention_rows(int) { return 128; }
constexpr int masked_attention_keys(int head_dim) { return head_dim <= 64 ? 64 : 32; }
constexpr int kMaskedAttentionThreads = 128;
// Where a GPU has warpgroup kernels: rows as above, keys for both head sizes.
constexpr int kWarpgroupAttentionKeys = 64;
constexpr int kWarpgroupAttentionThreads = 384;
constexpr int kWarpgroupAttentionStages = 4;
constexpr int kWarpgroupAttentionKeptBytes = 1024;  // of shared memory, for what warps keep of their segments
// Key tiles that are requested before the first of them is waited for. Fewer than stages: only what was waited for is
// announced, and a stage is free only once what was announced has been multiplied.
constexpr int kWarpgroupTilesUnderWay = 2;

// 16-byte units from one row or head to the next.
struct MaskedSource {
  const void* data;
  uint32_t row_stride, head_stride;
};

struct MaskedAttentionLaunch {
  MaskedBlockAttentionParams op;
  MaskTiles tiles;
  MaskedSource k, v;
  float scale_log2;  // scale * log2(e)
  uint32_t stages;   // key tiles in shared memory
};

// Of a warpgroup kernel.
struct WarpgroupAttentionLaunch {
  MaskedAttentionLaunch pass;
  uint32_t boxes;  // not 0: TMA takes k and v, and these are their maps, whose boxes are 64 channels of a key tile
  TensorMap k_map, v_map;
};

// All launches of the forward pass, the tiles' first. Throws std::invalid_argument for what no kernel is compiled for:
// float32, head sizes other than 64 and 128, rows that are not 16-byte aligned. Units (row tiles x kv heads) of the
// last launch: those with the most work come first, a block each, or, for warpgroups, one after another in a block of
// each multiprocessor.
std::vector<LaunchPlan> plan_masked_block_attention_forward(const MaskedBlockAttentionParams& params, void* workspace,
                                                            const DeviceProperties& device);

int64_t masked_block_attention_forward_workspace_bytes(const MaskedBlockAttentionParams& params);

// ---- Arguments of both passes

// Throws std::invalid_argument unless the stride counts whole 16-byte units and fits 32 bits of them.
uint32_t masked_stride_units(const char* name, int64_t stride);
// Throws std::invalid_argument for addresses or strides that 16-byte accesses do not allow.
MaskedSource masked_source(const char* name, const HeadRows& tensor);
// 0: float16 and 64, 1: float16 and 128, 2: bfloat16 and 64, 3: bfloat16 and 128. Throws std::invalid_argument for what
// no kernel is compiled for.
int masked_attention_kernel(const MaskedBlockAttentionParams& params);

}  // namespace dflash::cuda
