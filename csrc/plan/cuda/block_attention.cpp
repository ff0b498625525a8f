#include "plan/cuda/block_attention.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>

#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kRowTiles[] = {64, 128};
constexpr double kLog2E = 1.4426950408889634;
constexpr int64_t kElementsPerUnit = 8;  // of 16 bytes
constexpr int64_t kGridLimit = 65535;    // of y and z

// Key tiles in shared memory (stages) and blocks on a multiprocessor, on GPUs with 100 KB of shared memory a
// multiprocessor (8.6, 8.9, 12.x) and on those with 164 KB or more (8.0, 9.0, 10.x).
//
// Bytes in flight (Little's law): a multiprocessor's share of the bandwidth times 0.7 us of latency is 13 KB on an
// A100, 18 on an H100, 26 on an H200, 38 on a B200; 6 on an RTX 4090, 8 on an RTX 3090 or 5090. While a block computes
// on one stage the others are under way: blocks * (stages - 1) times 12 or 16 KB are 16 to 48 KB with 100 KB of shared
// memory, 48 to 96 KB with 164.
// Registers: a warp's sums take 16 * head_dim / 32 of a lane's 255 for each 16 rows, so two blocks of four warps fit
// everywhere; head_dim 256 with 128 rows has eight warps and one block. Two blocks, because one's softmax is hidden by
// the other's products; not three, because each split costs its partial sums.
// Shared memory: 2 * head_dim * (rows + 2 * key tile * stages) bytes and 1 KB that the system keeps, for every block.
struct TileShape {
  int64_t head_dim, rows;
  int64_t small_stages, small_blocks;
  int64_t large_stages, large_blocks;
};
constexpr TileShape kTileShapes[] = {
    {64, 64, 2, 2, 4, 2},    // 40 and 72 KB
    {64, 128, 2, 2, 4, 2},   // 48 and 80 KB
    {96, 64, 3, 2, 5, 2},    // 48 and 72 KB
    {96, 128, 2, 2, 4, 2},   // 48 and 72 KB
    {128, 64, 2, 2, 4, 2},   // 48 and 80 KB
    {128, 128, 4, 1, 3, 2},  // 96 and 80 KB
    {256, 64, 4, 1, 3, 2},   // 96 and 80 KB
    {256, 128, 2, 1, 4, 1},  // 96 and 128 KB
};
// What a split moves apart from its keys, mostly through L2, is worth several key tiles: for 64 rows of head_dim 128,
// 16 KB of queries and twice 33 KB of sums against 16 KB a tile. Splits that would be short leave multiprocessors with
// one block; none is made shorter than the least.
constexpr int64_t kShortSplitTiles = 6;
constexpr int64_t kLeastTilesPerSplit = 4;
// Splits fill the GPU at once where they fill so much of it; else a second wave of blocks may fill it better.
constexpr double kFullEnough = 0.85;

const TileShape& tile_shape(int64_t head_dim, int64_t rows) {
  return *std::find_if(std::begin(kTileShapes), std::end(kTileShapes),
                       [&](const TileShape& shape) { return shape.head_dim == head_dim && shape.rows == rows; });
}

bool has_small_shared_memory(const DeviceProperties& device) {
  return device.shared_bytes_per_multiprocessor < 164 * 1024;
}

struct Grid {
  int64_t rows;         // of a row tile
  int64_t tiles;        // row tiles, as many as there may be
  int64_t splits;       // of a row tile's keys, at most
  int64_t split_group;  // splits that meet before their groups do
  int64_t counters;     // of a row tile and kv head
};

// One step of up to kMostInOneStep splits, or groups of about as many splits as there are groups. A function of the
// number of splits that was asked for, so that sums are added in the same order in every batch.
constexpr int64_t kMostInOneStep = 8;
int64_t split_group(int64_t splits) {
  if (splits <= kMostInOneStep) return splits;
  int64_t group = kMostInOneStep / 2;
  while (group * group < splits) ++group;
  return group;
}

// As much of the GPU as blocks keep busy, on average over their waves.
double filled(int64_t blocks, int64_t resident) {
  return static_cast<double>(blocks) / static_cast<double>(ceil_div(blocks, resident) * resident);
}

// The fewest splits that fill the GPU about as well as any. `items`: as many blocks as there likely are without splits;
// `most_items`: as many as there may be, each of which takes workspace.
int64_t planned_splits(int64_t items, int64_t most_items, int64_t key_tiles, int64_t multiprocessors, int64_t blocks) {
  if (key_tiles < kShortSplitTiles * (blocks * multiprocessors / items)) blocks = 1;
  const int64_t resident = blocks * multiprocessors;
  const int64_t most =
      std::max<int64_t>(1, std::min(ceil_div(key_tiles, kLeastTilesPerSplit), 2 * resident / most_items));
  int64_t best = std::clamp<int64_t>(resident / items, 1, most);
  for (int64_t splits = best + 1; splits <= most && filled(items * best, resident) < kFullEnough; ++splits) {
    if (filled(items * splits, resident) > filled(items * best, resident)) best = splits;
  }
  return best;
}

Grid attention_grid(const BlockAttentionCudaShape& shape, bool ragged, int64_t multiprocessors, bool small) {
  const int64_t group = shape.q_heads / shape.kv_heads, rows_in_all = shape.tokens * group;
  const int64_t most_rows = ragged ? rows_in_all : rows_in_all / shape.batch;  // of a request
  Grid grid{};
  // K and V are swept once where one tile holds the longest request.
  grid.rows = attention_row_tile(most_rows);
  int64_t likely_tiles = 0;
  if (ragged) {
    // A request's last tile has at least gcd(group, rows) rows of it.
    const int64_t requests = std::min(shape.batch, shape.tokens);
    grid.tiles = (rows_in_all + requests * (grid.rows - std::gcd(group, grid.rows))) / grid.rows;
    // Blocks of row tiles that do not exist leave at once: equally long requests are what the GPU is filled with.
    likely_tiles = requests * ceil_div(ceil_div(shape.tokens, requests) * group, grid.rows);
  } else {
    grid.tiles = likely_tiles = shape.batch * ceil_div(most_rows, grid.rows);
  }
  const int64_t key_tile = attention_key_tile(static_cast<int>(shape.head_dim));
  const int64_t key_tiles = ceil_div(shape.max_context + shape.tokens, key_tile);
  const TileShape& tile = tile_shape(shape.head_dim, grid.rows);
  const int64_t most_items = grid.tiles * shape.kv_heads;
  grid.splits = shape.num_splits > 0 ? std::min({shape.num_splits, key_tiles, kGridLimit})
                                     : planned_splits(likely_tiles * shape.kv_heads, most_items, key_tiles,
                                                      multiprocessors, small ? tile.small_blocks : tile.large_blocks);
  grid.split_group = split_group(shape.num_splits > 0 ? std::min(shape.num_splits, kGridLimit) : grid.splits);
  const int64_t groups = ceil_div(grid.splits, grid.split_group);
  grid.counters = groups == 1 ? 1 : groups + 1;
  const int64_t counted_items = kMostCounters / grid.counters;
  if (most_items > counted_items && grid.splits > 1) {
    if (shape.num_splits > 1) {
      throw std::invalid_argument("num_splits: expected 1 for more than " + std::to_string(counted_items) +
                                  " (row tile, kv head) pairs, got " + std::to_string(shape.num_splits));
    }
    grid.splits = grid.split_group = 1;
  }
  return grid;
}

int64_t workspace_bytes(const Grid& grid, int64_t kv_heads, int64_t head_dim) {
  if (grid.splits <= 1) return 0;
  return kCounterBytes + grid.tiles * kv_heads * grid.splits * attention_partial_floats(head_dim, grid.rows) * 4;
}

AttentionSource source(const char* cache_name, const void* cache, int64_t page_stride, int64_t slot_stride,
                       int64_t head_stride, const char* block_name, const void* block, int64_t token_stride,
                       int64_t block_head_stride) {
  check_aligned_rows(cache_name, cache);
  check_aligned_rows(block_name, block);
  return {cache,
          block,
          attention_units(cache_name, page_stride),
          attention_units(cache_name, slot_stride),
          attention_units(cache_name, head_stride),
          attention_units(block_name, token_stride),
          attention_units(block_name, block_head_stride)};
}

}  // namespace

uint32_t attention_units(const char* name, int64_t stride) {
  if (stride < 0 || stride % kElementsPerUnit != 0 || stride / kElementsPerUnit > UINT32_MAX) {
    throw std::invalid_argument(std::string(name) + ": expected strides that are multiples of 8 elements, got " +
                                std::to_string(stride));
  }
  return static_cast<uint32_t>(stride / kElementsPerUnit);
}

void check_aligned_rows(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    throw std::invalid_argument(std::string(name) + ": expected 16-byte aligned rows, got an address that is not");
  }
}

int attention_entry(DType dtype, int64_t head_dim, int64_t row_tile) {
  const int which = head_dim == 64 ? 0 : head_dim == 96 ? 1 : head_dim == 128 ? 2 : head_dim == 256 ? 3 : -1;
  if (which < 0) {
    throw std::invalid_argument("head_dim: expected 64, 96, 128 or 256 on CUDA, got " + std::to_string(head_dim));
  }
  if (dtype == DType::kFloat32) {
    throw std::invalid_argument("q: expected float16 or bfloat16 on CUDA, got float32");
  }
  return ((dtype == DType::kBFloat16 ? 4 : 0) + which) * 2 + (row_tile == kRowTiles[1] ? 1 : 0);
}

int64_t attention_row_tile(int64_t most_rows) { return most_rows <= kRowTiles[0] ? kRowTiles[0] : kRowTiles[1]; }

AttentionResidency attention_residency(int64_t head_dim, int64_t rows, const DeviceProperties& device) {
  const TileShape& shape = tile_shape(head_dim, rows);
  const bool small = has_small_shared_memory(device);
  const int64_t stages = small ? shape.small_stages : shape.large_stages;
  const int64_t key_tile = attention_key_tile(static_cast<int>(head_dim));
  return {stages, small ? shape.small_blocks : shape.large_blocks, 2 * head_dim * (rows + 2 * key_tile * stages)};
}

AttentionPlan plan_attention(const BlockAttentionParams& params, int64_t likely_context, void* workspace,
                             const DeviceProperties& device) {
  const bool ragged = params.cu_block_lens != nullptr;
  const bool nothing = params.batch == 0 || params.tokens == 0;
  Grid grid{kRowTiles[0], 0, 1, 1, 1};
  if (!nothing) {
    const int64_t capacity = params.max_pages * params.page_size;
    const BlockAttentionCudaShape shape{params.tokens,    params.batch,
                                        params.q_heads,   params.kv_heads,
                                        params.head_dim,  params.num_splits > 0 ? capacity : likely_context,
                                        params.num_splits};
    attention_entry(params.dtype, params.head_dim, grid.rows);  // before the table is asked for a shape it has not
    grid = attention_grid(shape, ragged, device.multiprocessors, has_small_shared_memory(device));
  }
  AttentionPlan plan{};
  plan.entry = attention_entry(params.dtype, params.head_dim, grid.rows);
  plan.row_tile = grid.rows;
  plan.block = {attention_threads(static_cast<int>(params.head_dim), static_cast<int>(grid.rows))};
  plan.grid = {0};
  BlockAttentionLaunch& launch = plan.launch;
  launch.op = params;
  if (nothing) return plan;

  launch.k = source("k_cache", params.k_cache, params.k_page_stride, params.k_slot_stride, params.k_head_stride,
                    "k_block", params.k_block, params.k_block_token_stride, params.k_block_head_stride);
  launch.v = source("v_cache", params.v_cache, params.v_page_stride, params.v_slot_stride, params.v_head_stride,
                    "v_block", params.v_block, params.v_block_token_stride, params.v_block_head_stride);
  check_aligned_rows("q", params.q);
  check_aligned_rows("out", params.out);
  for (const int64_t stride : {params.q_token_stride, params.q_head_stride}) attention_units("q", stride);
  for (const int64_t stride : {params.out_token_stride, params.out_head_stride}) attention_units("out", stride);

  const int64_t group = params.q_heads / params.kv_heads;
  const bool capped = params.softcap > 0;
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E * (capped ? 2.0 / params.softcap : 1.0));
  launch.softcap_log2 = static_cast<float>(capped ? params.softcap * kLog2E : 0.0);
  launch.window = static_cast<int32_t>(std::min<int64_t>(params.window, INT32_MAX));
  launch.capacity = static_cast<int32_t>(std::min<int64_t>(params.max_pages * params.page_size, INT32_MAX));
  launch.group = static_cast<uint32_t>(group);
  while ((int64_t{1} << launch.page_shift) < params.page_size) ++launch.page_shift;
  if (!ragged) {
    launch.request_rows = static_cast<uint32_t>(params.tokens / params.batch * group);
    launch.request_tiles = static_cast<uint32_t>(grid.tiles / params.batch);
  }
  const AttentionResidency residency = attention_residency(params.head_dim, grid.rows, device);
  launch.stages = static_cast<uint32_t>(residency.stages);
  launch.splits = static_cast<uint32_t>(grid.splits);
  launch.split_group = static_cast<uint32_t>(grid.split_group);
  launch.counters = static_cast<uint32_t>(grid.counters);
  launch.least_tiles = params.num_splits > 0 ? 1 : kLeastTilesPerSplit;
  if (grid.splits > 1) {
    launch.arrivals = arrival_counters(workspace);
    launch.partials = reinterpret_cast<float*>(scratch_of(workspace));
  }
  const int64_t key_tile = attention_key_tile(static_cast<int>(params.head_dim));
  plan.grid = {grid.tiles, params.kv_heads, grid.splits};
  plan.shared_bytes = residency.shared_bytes;
  plan.workspace_bytes = workspace_bytes(grid, params.kv_heads, params.head_dim);
  plan.bytes_in_flight = 2 * params.head_dim * 2 * key_tile * (launch.stages - 1);
  return plan;
}

LaunchPlan plan_block_attention(const BlockAttentionParams& params, void* workspace, const DeviceProperties& device) {
  static constexpr const char* kEntries[kAttentionEntries] = {
      "block_attention_float16_64_64",   "block_attention_float16_64_128",   "block_attention_float16_96_64",
      "block_attention_float16_96_128",  "block_attention_float16_128_64",   "block_attention_float16_128_128",
      "block_attention_float16_256_64",  "block_attention_float16_256_128",  "block_attention_bfloat16_64_64",
      "block_attention_bfloat16_64_128", "block_attention_bfloat16_96_64",   "block_attention_bfloat16_96_128",
      "block_attention_bfloat16_128_64", "block_attention_bfloat16_128_128", "block_attention_bfloat16_256_64",
      "block_attention_bfloat16_256_128"};
  const AttentionPlan attention = plan_attention(params, params.max_pages * params.page_size, workspace, device);
  LaunchPlan plan = make_launch(kEntries[attention.entry], attention.grid, attention.block, attention.shared_bytes,
                                attention.launch, attention.workspace_bytes);
  plan.bytes_in_flight = attention.bytes_in_flight;
  return plan;
}

int64_t block_attention_workspace_bytes(const BlockAttentionCudaShape& shape, int64_t multiprocessors) {
  const bool has_kernel = std::any_of(std::begin(kTileShapes), std::end(kTileShapes),
                                      [&](const TileShape& tile) { return tile.head_dim == shape.head_dim; });
  if (shape.batch <= 0 || shape.tokens <= 0 || !has_kernel) return 0;
  int64_t most = 0;
  for (const bool ragged : {false, true}) {
    if (!ragged && shape.tokens % shape.batch != 0) continue;
    for (const bool small : {false, true}) {
      const Grid grid = attention_grid(shape, ragged, multiprocessors, small);
      most = std::max(most, workspace_bytes(grid, shape.kv_heads, shape.head_dim));
    }
  }
  return most;
}

}  // namespace dflash::cuda
