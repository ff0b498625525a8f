#include "plan/cuda/block_attention.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace dflash::cuda {
namespace {

constexpr int64_t kRowTiles[] = {64, 128};
constexpr double kLog2E = 1.4426950408889634;

// Key tiles in shared memory and blocks on a multiprocessor, for GPUs of 100 KB a multiprocessor (8.6, 8.9, 12.x) and
// for those with 164 KB or more (8.0, 9.0, 10.x).
struct TileShape {
  int64_t head_dim, rows;
  int64_t small_stages, small_blocks;
  int64_t large_stages, large_blocks;
};
constexpr TileShape kTileShapes[] = {
    {64, 64, 2, 2, 4, 2},  {64, 128, 2, 2, 4, 2},  {96, 64, 3, 2, 5, 2},  {96, 128, 2, 2, 4, 2},
    {128, 64, 2, 2, 4, 2}, {128, 128, 4, 1, 3, 2}, {256, 64, 4, 1, 3, 2}, {256, 128, 2, 1, 4, 1},
};
// No shape has more blocks on a multiprocessor.
constexpr int64_t kMostBlocksPerMultiprocessor = 2;
// What a split costs apart from its keys, reading queries and writing and reading its sums, is worth about two key
// tiles; splits are not made shorter than twice that.
constexpr int64_t kLeastTilesPerSplit = 4;
constexpr int64_t kElementsPerUnit = 8;  // of 16 bytes

const TileShape& tile_shape(int64_t head_dim, int64_t rows) {
  return *std::find_if(std::begin(kTileShapes), std::end(kTileShapes),
                       [&](const TileShape& shape) { return shape.head_dim == head_dim && shape.rows == rows; });
}

// As many rows as the longest request may have, up to the larger tile: K and V are swept once where that is enough.
int64_t row_tile(int64_t most_rows) { return most_rows <= kRowTiles[0] ? kRowTiles[0] : kRowTiles[1]; }

// Row tiles of ragged requests: each starts one, and every full one ends within a request.
int64_t ragged_tiles(int64_t batch, int64_t tokens, int64_t group, int64_t rows) {
  return std::min(batch, tokens) + tokens * group / rows;
}

int64_t most_key_tiles(int64_t head_dim, int64_t max_context, int64_t tokens) {
  return ceil_div(max_context + tokens, attention_key_tile(static_cast<int>(head_dim)));
}

// The fewest splits whose waves leave hardly more of the GPU idle than the best number of splits would.
int64_t planned_splits(int64_t items, int64_t key_tiles, int64_t resident) {
  const int64_t most = std::min(resident / std::max<int64_t>(1, items), ceil_div(key_tiles, kLeastTilesPerSplit));
  return std::max<int64_t>(1, most);
}

int64_t arrivals_bytes(int64_t items) { return ceil_div(items * 4, 64) * 64; }

uint32_t units(const char* name, int64_t stride) {
  if (stride < 0 || stride % kElementsPerUnit != 0 || stride / kElementsPerUnit > UINT32_MAX) {
    throw std::invalid_argument(std::string(name) + ": expected strides that are multiples of 8 elements, got " +
                                std::to_string(stride));
  }
  return static_cast<uint32_t>(stride / kElementsPerUnit);
}

void check_aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    throw std::invalid_argument(std::string(name) + ": expected 16-byte aligned rows, got an address that is not");
  }
}

const char* entry_of(DType dtype, int64_t head_dim, int64_t rows) {
  static constexpr const char* kEntries[2][4][2] = {
      {{"block_attention_float16_64_64", "block_attention_float16_64_128"},
       {"block_attention_float16_96_64", "block_attention_float16_96_128"},
       {"block_attention_float16_128_64", "block_attention_float16_128_128"},
       {"block_attention_float16_256_64", "block_attention_float16_256_128"}},
      {{"block_attention_bfloat16_64_64", "block_attention_bfloat16_64_128"},
       {"block_attention_bfloat16_96_64", "block_attention_bfloat16_96_128"},
       {"block_attention_bfloat16_128_64", "block_attention_bfloat16_128_128"},
       {"block_attention_bfloat16_256_64", "block_attention_bfloat16_256_128"}}};
  const int which = head_dim == 64 ? 0 : head_dim == 96 ? 1 : head_dim == 128 ? 2 : head_dim == 256 ? 3 : -1;
  if (which < 0) {
    throw std::invalid_argument("head_dim: expected 64, 96, 128 or 256 on CUDA, got " + std::to_string(head_dim));
  }
  if (dtype == DType::kFloat32) {
    throw std::invalid_argument("q: expected float16 or bfloat16 on CUDA, got float32");
  }
  return kEntries[dtype == DType::kBFloat16][which][rows == kRowTiles[1]];
}

}  // namespace

LaunchPlan plan_block_attention(const BlockAttentionParams& params, void* workspace, const DeviceProperties& device) {
  const int64_t group = params.kv_heads > 0 ? params.q_heads / params.kv_heads : 0;
  const bool ragged = params.cu_block_lens != nullptr;
  const int64_t request_rows = ragged || params.batch == 0 ? 0 : params.tokens / params.batch * group;
  const int64_t rows = row_tile(ragged ? params.tokens * group : request_rows);
  const char* entry = entry_of(params.dtype, params.head_dim, rows);
  const TileShape& shape = tile_shape(params.head_dim, rows);
  const int threads = attention_threads(static_cast<int>(params.head_dim), static_cast<int>(rows));

  BlockAttentionLaunch launch{};
  launch.op = params;
  if (params.batch == 0 || params.tokens * group == 0) return make_launch(entry, {0}, {threads}, 0, launch, 0);
  for (const auto& [name, data] : {std::pair<const char*, const void*>{"q", params.q},
                                   {"k_cache", params.k_cache},
                                   {"v_cache", params.v_cache},
                                   {"k_block", params.k_block},
                                   {"v_block", params.v_block},
                                   {"out", params.out}}) {
    check_aligned(name, data);
  }
  units("q", params.q_token_stride);
  units("q", params.q_head_stride);
  units("out", params.out_token_stride);
  units("out", params.out_head_stride);
  launch.k = {params.k_cache,
              params.k_block,
              units("k_cache", params.k_page_stride),
              units("k_cache", params.k_slot_stride),
              units("k_cache", params.k_head_stride),
              units("k_block", params.k_block_token_stride),
              units("k_block", params.k_block_head_stride)};
  launch.v = {params.v_cache,
              params.v_block,
              units("v_cache", params.v_page_stride),
              units("v_cache", params.v_slot_stride),
              units("v_cache", params.v_head_stride),
              units("v_block", params.v_block_token_stride),
              units("v_block", params.v_block_head_stride)};
  const bool capped = params.softcap > 0;
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E * (capped ? 2.0 / params.softcap : 1.0));
  launch.softcap_log2 = static_cast<float>(capped ? params.softcap * kLog2E : 0.0);
  launch.window = static_cast<int32_t>(std::min<int64_t>(params.window, INT32_MAX));
  launch.capacity = static_cast<int32_t>(std::min<int64_t>(params.max_pages * params.page_size, INT32_MAX));
  launch.group = static_cast<uint32_t>(group);
  while ((int64_t{1} << launch.page_shift) < params.page_size) ++launch.page_shift;
  launch.request_rows = static_cast<uint32_t>(request_rows);
  launch.request_tiles = static_cast<uint32_t>(ceil_div(request_rows, rows));

  const bool small = device.shared_bytes_per_multiprocessor < 164 * 1024;
  const int64_t stages = small ? shape.small_stages : shape.large_stages;
  const int64_t tiles =
      ragged ? ragged_tiles(params.batch, params.tokens, group, rows) : params.batch * launch.request_tiles;
  const int64_t resident = (small ? shape.small_blocks : shape.large_blocks) * device.multiprocessors;
  const int64_t key_tiles = most_key_tiles(params.head_dim, params.max_pages * params.page_size, params.tokens);
  // Padding of ragged requests does not count: there are at least this many tiles to fill the GPU with.
  const int64_t items = tiles * params.kv_heads;
  const int64_t splits =
      params.num_splits > 0 ? std::min(params.num_splits, key_tiles) : planned_splits(items, key_tiles, resident);
  launch.stages = static_cast<uint32_t>(stages);
  launch.splits = static_cast<uint32_t>(splits);
  launch.least_tiles = params.num_splits > 0 ? 1 : kLeastTilesPerSplit;
  launch.arrivals = static_cast<uint32_t*>(workspace);
  const int64_t counters = splits > 1 ? arrivals_bytes(items) : 0;
  launch.partials = reinterpret_cast<float*>(static_cast<unsigned char*>(workspace) + counters);
  const int64_t partials = splits > 1 ? items * splits * attention_partial_floats(params.head_dim, rows) * 4 : 0;
  const int64_t key_tile = attention_key_tile(static_cast<int>(params.head_dim));
  const int64_t shared_bytes = 2 * params.head_dim * (rows + 2 * key_tile * stages);
  return make_launch(entry, {tiles, params.kv_heads, splits}, {threads}, shared_bytes, launch, counters + partials);
}

int64_t block_attention_workspace_bytes(const BlockAttentionCudaShape& shape, int64_t multiprocessors) {
  if (shape.batch <= 0 || shape.tokens <= 0 || shape.kv_heads <= 0) return 0;
  const int64_t group = shape.q_heads / shape.kv_heads;
  const int64_t key_tiles = most_key_tiles(shape.head_dim, shape.max_context, shape.tokens);
  int64_t most = 0;
  for (const int64_t rows : kRowTiles) {
    // Uniform requests make no more tiles than ragged ones can.
    const int64_t items = shape.kv_heads * ragged_tiles(shape.batch, shape.tokens, group, rows);
    const int64_t resident = kMostBlocksPerMultiprocessor * multiprocessors;
    const int64_t splits =
        shape.num_splits > 0 ? std::min(shape.num_splits, key_tiles) : ceil_div(key_tiles, kLeastTilesPerSplit);
    const int64_t partials = shape.num_splits > 0 ? items * splits : std::min(items * splits, resident);
    if (splits <= 1) continue;
    most = std::max(most, arrivals_bytes(items) + partials * attention_partial_floats(shape.head_dim, rows) * 4);
  }
  return most;
}

}  // namespace dflash::cuda
