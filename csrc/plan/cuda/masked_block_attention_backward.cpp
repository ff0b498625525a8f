#include "plan/cuda/masked_block_attention_backward.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace dflash::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int64_t kElementsPerUnit = 8;  // of 16 bytes
constexpr int64_t kAlignment = 256;      // of the workspace's parts

enum Kernel { kRows, kKeys, kQueries, kSum };

const char* entry_of(Kernel kernel, DType dtype, int64_t head_dim) {
  static constexpr const char* kEntries[4][2][2] = {
      {{"masked_backward_rows_float16_64", "masked_backward_rows_float16_128"},
       {"masked_backward_rows_bfloat16_64", "masked_backward_rows_bfloat16_128"}},
      {{"masked_backward_keys_float16_64", "masked_backward_keys_float16_128"},
       {"masked_backward_keys_bfloat16_64", "masked_backward_keys_bfloat16_128"}},
      {{"masked_backward_queries_float16_64", "masked_backward_queries_float16_128"},
       {"masked_backward_queries_bfloat16_64", "masked_backward_queries_bfloat16_128"}},
      {{"masked_backward_sum_float16_64", "masked_backward_sum_float16_128"},
       {"masked_backward_sum_bfloat16_64", "masked_backward_sum_bfloat16_128"}}};
  if (head_dim != 64 && head_dim != 128) {
    throw std::invalid_argument("head_dim: expected 64 or 128 on CUDA, got " + std::to_string(head_dim));
  }
  if (dtype == DType::kFloat32) {
    throw std::invalid_argument("q: expected float16 or bfloat16 on CUDA, got float32");
  }
  return kEntries[kernel][dtype == DType::kBFloat16][head_dim == 128];
}

void check_aligned(const char* name, const HeadRows& rows) {
  if (reinterpret_cast<uintptr_t>(rows.data) % 16 != 0) {
    throw std::invalid_argument(std::string(name) + ": expected 16-byte aligned rows, got an address that is not");
  }
  for (const int64_t stride : {rows.row_stride, rows.head_stride}) {
    if (stride < 0 || stride % kElementsPerUnit != 0) {
      throw std::invalid_argument(std::string(name) + ": expected strides that are multiples of 8 elements, got " +
                                  std::to_string(stride));
    }
  }
}

int32_t checked_rows(const MaskedBlockAttentionParams& params) {
  const int64_t rows = params.queries * (params.q_heads / params.kv_heads);
  // A last tile's rows are counted past the last row.
  if (rows > INT32_MAX - kMaskedBackwardQueryRows) {
    throw std::invalid_argument("q: expected fewer than 2^31 - 64 rows for each kv head on CUDA, got " +
                                std::to_string(rows));
  }
  return static_cast<int32_t>(rows);
}

struct Sizes {
  int64_t rows, row_tiles, query_tiles, key_tiles, splits, split_tiles;
};

// A key tile of the context is walked by the rows of all anchors behind it, the first tile by nearly all of them, while
// a tile of the blocks' keys is seen by a few rows. So the tiles of the context decide how long the kernel runs: where
// they are fewer than two for each place on the GPU, they are split.
Sizes sizes_of(const MaskedBlockAttentionParams& params, const DeviceProperties& device) {
  constexpr int64_t kLeastTilesPerSplit = 8;
  const int64_t tile_rows = masked_backward_rows(static_cast<int>(params.head_dim));
  Sizes sizes{checked_rows(params), 0, 0, ceil_div(params.keys, kMaskedBackwardKeys), 1, 0};
  sizes.row_tiles = ceil_div(sizes.rows, tile_rows);
  sizes.query_tiles = ceil_div(sizes.rows, kMaskedBackwardQueryRows);
  const int64_t blocks = device.shared_bytes_per_multiprocessor < 164 * 1024 ? 1 : 2;  // on a multiprocessor
  const int64_t long_tiles = ceil_div(context_tokens(params), kMaskedBackwardKeys);
  if (long_tiles == 0) return sizes;
  const int64_t wanted = ceil_div(2 * blocks * device.multiprocessors, long_tiles * params.kv_heads);
  sizes.splits = std::max<int64_t>(1, std::min(wanted, sizes.row_tiles / kLeastTilesPerSplit));
  sizes.split_tiles = sizes.splits > 1 ? long_tiles : 0;
  return sizes;
}

// Offsets of the workspace's parts.
struct Layout {
  Layout(const MaskedBlockAttentionParams& params, const Sizes& sizes)
      : query_keys(aligned(params.kv_heads * sizes.row_tiles * masked_backward_rows(static_cast<int>(params.head_dim)) *
                           static_cast<int64_t>(sizeof(MaskedRowTerms)))),
        tile_keys(aligned(query_keys + params.queries * static_cast<int64_t>(sizeof(MaskedKeys)))),
        partials(aligned(tile_keys + sizes.row_tiles * static_cast<int64_t>(sizeof(MaskedTileKeys)))),
        bytes(partials + sizes.split_tiles * params.kv_heads * sizes.splits *
                             masked_backward_partial_floats(params.head_dim) * 4) {}
  static int64_t aligned(int64_t offset) { return ceil_div(offset, kAlignment) * kAlignment; }

  int64_t query_keys, tile_keys, partials, bytes;
};

}  // namespace

std::vector<LaunchPlan> plan_masked_block_attention_backward(const MaskedBlockAttentionParams& params, void* workspace,
                                                             const DeviceProperties& device) {
  const auto entry = [&](Kernel kernel) { return entry_of(kernel, params.dtype, params.head_dim); };
  entry(kRows);  // refuses before tiles are counted
  const Sizes sizes = sizes_of(params, device);
  const Layout layout(params, sizes);
  const std::pair<const char*, const HeadRows*> tensors[] = {{"q", &params.q},
                                                             {"k", &params.k},
                                                             {"v", &params.v},
                                                             {"out", &params.out},
                                                             {"grad_out", &params.grad_out},
                                                             {"grad_q", &params.grad_q},
                                                             {"grad_k", &params.grad_k},
                                                             {"grad_v", &params.grad_v}};
  for (const auto& [name, rows] : tensors) check_aligned(name, *rows);

  auto* bytes = static_cast<unsigned char*>(workspace);
  MaskedBackwardLaunch launch{};
  launch.op = params;
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E);
  launch.group = static_cast<int32_t>(params.q_heads / params.kv_heads);
  launch.rows = static_cast<int32_t>(sizes.rows);
  launch.row_tiles = static_cast<int32_t>(sizes.row_tiles);
  launch.key_tiles = static_cast<int32_t>(sizes.key_tiles);
  launch.query_tiles = static_cast<int32_t>(sizes.query_tiles);
  launch.splits = static_cast<int32_t>(sizes.splits);
  launch.split_tiles = static_cast<int32_t>(sizes.split_tiles);
  launch.terms = reinterpret_cast<MaskedRowTerms*>(bytes);
  launch.query_keys = reinterpret_cast<MaskedKeys*>(bytes + layout.query_keys);
  launch.tile_keys = reinterpret_cast<MaskedTileKeys*>(bytes + layout.tile_keys);
  launch.partials = reinterpret_cast<float*>(bytes + layout.partials);

  const int64_t tile_rows = masked_backward_rows(static_cast<int>(params.head_dim)), row_bytes = 2 * params.head_dim;
  const int64_t key_tile_bytes = 2 * kMaskedBackwardKeys * row_bytes;  // of keys and of values
  const int64_t row_stage_bytes = tile_rows * (2 * row_bytes + static_cast<int64_t>(sizeof(MaskedRowTerms)));
  const int64_t key_blocks = sizes.key_tiles + sizes.split_tiles * (sizes.splits - 1);
  const Dim3 threads{kMaskedBackwardThreads};
  const auto plan = [&](Kernel kernel, int64_t tiles, int64_t shared_bytes) {
    return make_launch(entry(kernel), {tiles * params.kv_heads}, threads, shared_bytes, launch, layout.bytes);
  };
  std::vector<LaunchPlan> plans{plan(kRows, sizes.row_tiles, 0),
                                plan(kKeys, key_blocks, key_tile_bytes + 2 * row_stage_bytes),
                                plan(kQueries, sizes.query_tiles, 2 * key_tile_bytes)};
  plans[1].bytes_in_flight = row_stage_bytes;
  plans[2].bytes_in_flight = key_tile_bytes;
  if (sizes.split_tiles > 0) plans.push_back(plan(kSum, sizes.split_tiles, 0));
  return plans;
}

int64_t masked_block_attention_backward_workspace_bytes(const MaskedBlockAttentionParams& params,
                                                        const DeviceProperties& device) {
  entry_of(kRows, params.dtype, params.head_dim);
  return Layout(params, sizes_of(params, device)).bytes;
}

}  // namespace dflash::cuda
