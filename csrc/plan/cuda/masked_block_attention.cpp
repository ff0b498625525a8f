#include "plan/cuda/masked_block_attention.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace dflash::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int64_t kElementsPerUnit = 8;  // of 16 bytes

int64_t blocks_of(const MaskedBlockAttentionParams& params) {
  return params.mode == MaskMode::kAnchor && params.block_size > 0 ? params.queries / params.block_size : 0;
}

int64_t rows_of(const MaskedBlockAttentionParams& params) {
  return params.queries * (params.q_heads / params.kv_heads);
}

int64_t context_tiles_of(const MaskedBlockAttentionParams& params, const MaskTileShape& shape) {
  return ceil_div(context_tokens(params), shape.keys);
}

int64_t key_tiles_of(const MaskedBlockAttentionParams& params, const MaskTileShape& shape) {
  return context_tiles_of(params, shape) +
         (params.mode == MaskMode::kAnchor ? ceil_div(params.queries, shape.keys) : 0);
}

// Hands out parts of the workspace, each on 16 bytes.
class Parts {
 public:
  explicit Parts(void* workspace) : next_(static_cast<unsigned char*>(workspace)) {}

  template <typename T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    const int64_t bytes = ceil_div(count * static_cast<int64_t>(sizeof(T)), 16) * 16;
    next_ = reinterpret_cast<unsigned char*>(reinterpret_cast<uintptr_t>(next_) + static_cast<uintptr_t>(bytes));
    return part;
  }
  int64_t taken_after(const void* workspace) const {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(next_) - reinterpret_cast<uintptr_t>(workspace));
  }

 private:
  unsigned char* next_;
};

// Bytes of the workspace.
int64_t place_tiles(const MaskedBlockAttentionParams& params, const MaskTileShape& shape, void* workspace,
                    MaskTiles* tiles) {
  *tiles = MaskTiles{};
  const int64_t blocks = blocks_of(params), rows = rows_of(params);
  if (shape.rows > kMostTileRows) throw std::invalid_argument("rows: expected at most 128 in a row tile");
  const int64_t row_tiles = ceil_div(rows, shape.rows), key_tiles = key_tiles_of(params, shape);
  if (rows > INT32_MAX - shape.rows || params.keys > INT32_MAX - 2 * shape.keys) {
    throw std::invalid_argument("q: expected fewer than 2^31 rows of a kv head on CUDA, got " + std::to_string(rows));
  }
  Parts parts(workspace);
  if (blocks > 0) tiles->order = parts.take<int32_t>(blocks);
  tiles->query_keys = parts.take<QueryKeys>(params.queries);
  tiles->segment_starts = parts.take<int32_t>(params.queries);
  tiles->row_tiles = parts.take<RowTile>(row_tiles);
  tiles->row_schedule = parts.take<int32_t>(row_tiles);
  if (shape.with_key_tiles) {
    tiles->key_tiles = parts.take<KeyTile>(key_tiles);
    tiles->key_schedule = parts.take<int32_t>(key_tiles);
  }
  tiles->tile_rows = static_cast<uint32_t>(shape.rows);
  tiles->tile_keys = static_cast<uint32_t>(shape.keys);
  tiles->row_tile_count = static_cast<uint32_t>(row_tiles);
  tiles->key_tile_count = static_cast<uint32_t>(key_tiles);
  tiles->context_tiles = static_cast<uint32_t>(context_tiles_of(params, shape));
  tiles->queries = static_cast<uint32_t>(params.queries);
  tiles->blocks = static_cast<uint32_t>(blocks);
  tiles->context = static_cast<uint32_t>(context_tokens(params));
  tiles->group = static_cast<uint32_t>(params.q_heads / params.kv_heads);
  tiles->block_size = static_cast<uint32_t>(std::max<int64_t>(1, params.block_size));
  return parts.taken_after(workspace);
}

void check_aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    throw std::invalid_argument(std::string(name) + ": expected 16-byte aligned rows, got an address that is not");
  }
}

// Key tiles in shared memory. Beside 16 or 32 KB of queries a stage takes 16 KB; four warps with 32 rows each need
// nearly all of a lane's 255 registers, so two blocks fit, one's softmax behind the other's products. With 164 KB of
// shared memory or more they have up to 82 KB each; with 100 KB, 48 KB are enough for two blocks of head_dim 64, and
// head_dim 128 has one block.
uint32_t stages_of(int64_t head_dim, const DeviceProperties& device) {
  const bool small = device.shared_bytes_per_multiprocessor < 164 * 1024;
  if (head_dim == 64) return small ? 2 : 4;
  return small ? 4 : 3;
}

// The last launch of the forward pass on a GPU.
struct ForwardKernel {
  const char* entry;
  int64_t threads;
  MaskTileShape tile;
  uint32_t stages;
  int64_t other_bytes;  // behind the stages: barriers, and what warps keep of segments
  int64_t under_way;    // key tiles that a block has requested
  int64_t blocks;       // at most so many, which then have several units each
};

ForwardKernel forward_kernel(const MaskedBlockAttentionParams& params, const DeviceProperties& device) {
  static constexpr const char* kEntries[] = {"masked_block_attention_float16_64", "masked_block_attention_float16_128",
                                             "masked_block_attention_bfloat16_64",
                                             "masked_block_attention_bfloat16_128"};
  static constexpr const char* kWarpgroupEntries[] = {
      "masked_block_attention_sm90a_float16_64", "masked_block_attention_sm90a_float16_128",
      "masked_block_attention_sm90a_bfloat16_64", "masked_block_attention_sm90a_bfloat16_128"};
  const int kernel = masked_attention_kernel(params), head_dim = static_cast<int>(params.head_dim);
  const int64_t rows = masked_attention_rows(head_dim);
  if (device.warpgroup_kernels) {
    constexpr uint32_t kStages = kWarpgroupAttentionStages;
    return {kWarpgroupEntries[kernel],
            kWarpgroupAttentionThreads,
            {rows, kWarpgroupAttentionKeys, false},
            kStages,
            2 * kStages * static_cast<int64_t>(sizeof(uint64_t)) + kWarpgroupAttentionKeptBytes,
            kWarpgroupTilesUnderWay,
            device.multiprocessors};
  }
  const uint32_t stages = stages_of(params.head_dim, device);
  return {
      kEntries[kernel], kMaskedAttentionThreads, {rows, masked_attention_keys(head_dim), false}, stages, 0, stages - 1,
      INT64_MAX};
}

}  // namespace

int64_t mask_tiles_bytes(const MaskedBlockAttentionParams& params, const MaskTileShape& shape) {
  MaskTiles tiles;
  return place_tiles(params, shape, nullptr, &tiles);
}

std::vector<LaunchPlan> plan_mask_tiles(const MaskedBlockAttentionParams& params, const MaskTileShape& shape,
                                        void* workspace, MaskTiles* tiles) {
  const int64_t bytes = place_tiles(params, shape, workspace, tiles);
  const MaskTilesLaunch launch{params, *tiles};
  std::vector<LaunchPlan> plans;
  const auto add = [&](const char* entry, int64_t x, int64_t y) {
    if (x > 0) plans.push_back(make_launch(entry, {x, y}, {kMaskTileThreads}, 0, launch, bytes));
  };
  const int64_t row_tiles = tiles->row_tile_count, key_tiles = shape.with_key_tiles ? tiles->key_tile_count : 0;
  add("masked_block_attention_order", ceil_div(tiles->blocks, kMaskTileThreads), 1);
  add("masked_block_attention_row_tiles", row_tiles, 1);
  add("masked_block_attention_key_tiles", key_tiles, 1);
  add("masked_block_attention_schedule", ceil_div(std::max(row_tiles, key_tiles), kMaskTileThreads),
      shape.with_key_tiles ? 2 : 1);
  return plans;
}

uint32_t masked_stride_units(const char* name, int64_t stride) {
  if (stride < 0 || stride % kElementsPerUnit != 0 || stride / kElementsPerUnit > UINT32_MAX) {
    throw std::invalid_argument(std::string(name) + ": expected strides that are multiples of 8 elements, got " +
                                std::to_string(stride));
  }
  return static_cast<uint32_t>(stride / kElementsPerUnit);
}

MaskedSource masked_source(const char* name, const HeadRows& tensor) {
  check_aligned(name, tensor.data);
  return {tensor.data, masked_stride_units(name, tensor.row_stride), masked_stride_units(name, tensor.head_stride)};
}

int masked_attention_kernel(const MaskedBlockAttentionParams& params) {
  if (params.head_dim != 64 && params.head_dim != 128) {
    throw std::invalid_argument("head_dim: expected 64 or 128 on CUDA, got " + std::to_string(params.head_dim));
  }
  if (params.dtype == DType::kFloat32) {
    throw std::invalid_argument("q: expected float16 or bfloat16 on CUDA, got float32");
  }
  return (params.dtype == DType::kBFloat16 ? 2 : 0) + (params.head_dim == 128 ? 1 : 0);
}

std::vector<LaunchPlan> plan_masked_block_attention_forward(const MaskedBlockAttentionParams& params, void* workspace,
                                                            const DeviceProperties& device) {
  const ForwardKernel kernel = forward_kernel(params, device);
  if (params.queries == 0) return {};
  MaskedAttentionLaunch launch{};
  launch.op = params;
  launch.k = masked_source("k", params.k);
  launch.v = masked_source("v", params.v);
  masked_source("q", params.q);
  masked_source("out", params.out);
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E);
  std::vector<LaunchPlan> plans = plan_mask_tiles(params, kernel.tile, workspace, &launch.tiles);
  launch.stages = kernel.stages;
  const int64_t row_bytes = 2 * params.head_dim, tile_bytes = 2 * kernel.tile.keys * row_bytes;
  const int64_t shared_bytes = kernel.tile.rows * row_bytes + kernel.stages * tile_bytes + kernel.other_bytes;
  const int64_t units = launch.tiles.row_tile_count * params.kv_heads;
  const auto add = [&](const auto& pass) {
    plans.push_back(make_launch(kernel.entry, {std::min(units, kernel.blocks)}, {kernel.threads}, shared_bytes, pass,
                                plans.front().workspace_bytes));
    plans.back().bytes_in_flight = kernel.under_way * tile_bytes;
  };
  if (!device.warpgroup_kernels) {
    add(launch);
    return plans;
  }
  const auto map = [&](const HeadRows& tensor, size_t offset) {
    return head_rows_tensor_map(tensor, params.dtype, params.keys, params.kv_heads, params.head_dim, kernel.tile.keys,
                                static_cast<int64_t>(offset));
  };
  const auto k_map = map(params.k, offsetof(WarpgroupAttentionLaunch, k_map));
  const auto v_map = map(params.v, offsetof(WarpgroupAttentionLaunch, v_map));
  const bool boxes = k_map && v_map;
  add(WarpgroupAttentionLaunch{launch, boxes ? 1u : 0u, {}, {}});
  if (boxes) plans.back().tensor_maps = {*k_map, *v_map};
  return plans;
}

int64_t masked_block_attention_forward_workspace_bytes(const MaskedBlockAttentionParams& params) {
  if (params.queries == 0) return 0;
  // Without key tiles, of which all kernels' shapes have another number, one size serves them all.
  const int head_dim = static_cast<int>(params.head_dim);
  return mask_tiles_bytes(params, {masked_attention_rows(head_dim), masked_attention_keys(head_dim), false});
}

}  // namespace dflash::cuda
