#include "plan/cuda/masked_block_attention_backward.h"

#include <algorithm>

namespace dflash::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// In the order of masked_attention_kernel().
constexpr const char* kTerms[] = {"masked_backward_terms_float16_64", "masked_backward_terms_float16_128",
                                  "masked_backward_terms_bfloat16_64", "masked_backward_terms_bfloat16_128"};
constexpr const char* kKeys[] = {"masked_backward_keys_float16_64", "masked_backward_keys_float16_128",
                                 "masked_backward_keys_bfloat16_64", "masked_backward_keys_bfloat16_128"};
constexpr const char* kQueries[] = {"masked_backward_queries_float16_64", "masked_backward_queries_float16_128",
                                    "masked_backward_queries_bfloat16_64", "masked_backward_queries_bfloat16_128"};
constexpr const char* kSum[] = {"masked_backward_sum_float16_64", "masked_backward_sum_float16_128",
                                "masked_backward_sum_bfloat16_64", "masked_backward_sum_bfloat16_128"};

// The kernels of sm_90a, in the same order.
constexpr const char* kWarpgroupKeys[] = {
    "masked_backward_keys_sm90a_float16_64", "masked_backward_keys_sm90a_float16_128",
    "masked_backward_keys_sm90a_bfloat16_64", "masked_backward_keys_sm90a_bfloat16_128"};
constexpr const char* kWarpgroupQueries[] = {
    "masked_backward_queries_sm90a_float16_64", "masked_backward_queries_sm90a_float16_128",
    "masked_backward_queries_sm90a_bfloat16_64", "masked_backward_queries_sm90a_bfloat16_128"};
constexpr const char* kWarpgroupSum[] = {
    "masked_backward_sum_sm90a_float16_64", "masked_backward_sum_sm90a_float16_128",
    "masked_backward_sum_sm90a_bfloat16_64", "masked_backward_sum_sm90a_bfloat16_128"};

MaskTileShape shape_of(const DeviceProperties& device) {
  if (device.warpgroup_kernels) return {kWarpgroupBackwardTile, kWarpgroupBackwardTile, true};
  return {kMaskedBackwardRows, kMaskedBackwardKeys, true};
}

int64_t row_tiles_of(const MaskedBlockAttentionParams& params, const MaskTileShape& shape) {
  return ceil_div(params.queries * (params.q_heads / params.kv_heads), shape.rows);
}

int64_t context_tiles_of(const MaskedBlockAttentionParams& params, const MaskTileShape& shape) {
  return ceil_div(context_tokens(params), shape.keys);
}

// A context tile is walked by the rows of all anchors behind it, the first tile by nearly all rows; the longest walk
// decides when the kernel ends. Two walks for each place on the GPU are enough for the schedule, longest first, to even
// them out.
int64_t splits_of(const MaskedBlockAttentionParams& params, const DeviceProperties& device) {
  const MaskTileShape shape = shape_of(device);
  const int64_t walks = context_tiles_of(params, shape) * params.kv_heads;
  if (walks == 0) return 1;
  // On a multiprocessor: registers leave room for two, shared memory of 100 KB for one that takes 64.5 KB. One of three
  // warpgroups takes nearly all of both.
  const bool small = device.shared_bytes_per_multiprocessor < 164 * 1024;
  const int64_t blocks = device.warpgroup_kernels || (small && params.head_dim > 64) ? 1 : 2;
  const int64_t wanted = ceil_div(2 * blocks * device.multiprocessors, walks);
  const int64_t least_tiles = kMaskedBackwardLeastRows / shape.rows;
  return std::max<int64_t>(1, std::min(wanted, row_tiles_of(params, shape) / least_tiles));
}

// Offsets of the workspace's parts behind the mask's tiles, each on 16 bytes.
struct Layout {
  Layout(const MaskedBlockAttentionParams& params, const MaskTileShape& shape, int64_t splits)
      : terms(mask_tiles_bytes(params, shape)),
        partials(terms + params.kv_heads * row_tiles_of(params, shape) * shape.rows *
                             static_cast<int64_t>(sizeof(MaskedRowTerms))),
        bytes(partials + (splits == 1 ? 0
                                      : context_tiles_of(params, shape) * params.kv_heads * splits *
                                            masked_backward_partial_floats(params.head_dim, shape.keys) * 4)) {}
  int64_t terms, partials, bytes;
};

}  // namespace

std::vector<LaunchPlan> plan_masked_block_attention_backward(const MaskedBlockAttentionParams& params, void* workspace,
                                                             const DeviceProperties& device) {
  const int kernel = masked_attention_kernel(params);
  const std::pair<const char*, const HeadRows*> tensors[] = {{"q", &params.q},
                                                             {"k", &params.k},
                                                             {"v", &params.v},
                                                             {"out", &params.out},
                                                             {"grad_out", &params.grad_out},
                                                             {"grad_q", &params.grad_q},
                                                             {"grad_k", &params.grad_k},
                                                             {"grad_v", &params.grad_v}};
  for (const auto& [name, rows] : tensors) masked_source(name, *rows);

  MaskedBackwardLaunch launch{};
  launch.op = params;
  const MaskTileShape shape = shape_of(device);
  std::vector<LaunchPlan> plans = plan_mask_tiles(params, shape, workspace, &launch.tiles);
  const int64_t splits = splits_of(params, device);
  const Layout layout(params, shape, splits);
  auto* bytes = static_cast<unsigned char*>(workspace);
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E);
  launch.rows = static_cast<int32_t>(launch.tiles.queries * launch.tiles.group);
  launch.splits = static_cast<int32_t>(splits);
  launch.terms = reinterpret_cast<MaskedRowTerms*>(bytes + layout.terms);
  if (splits > 1) launch.partials = reinterpret_cast<float*>(bytes + layout.partials);

  // Blocks (tiles x kv heads): those with the most work come first.
  const auto add = [&](const char* entry, int64_t tiles, int64_t threads, int64_t shared_bytes, int64_t in_flight) {
    if (tiles == 0) return;
    plans.push_back(make_launch(entry, {tiles * params.kv_heads}, {threads}, shared_bytes, launch, layout.bytes));
    plans.back().bytes_in_flight = in_flight;
  };
  const int64_t row_tiles = launch.tiles.row_tile_count, key_tiles = launch.tiles.key_tile_count;
  const int64_t context_tiles = splits > 1 ? launch.tiles.context_tiles : 0;
  add(kTerms[kernel], row_tiles * (shape.rows / kMaskedBackwardRows), kMaskedBackwardThreads, 0, 0);
  if (device.warpgroup_kernels) {
    constexpr int64_t kThreads = kWarpgroupBackwardThreads;
    const int64_t shared_bytes = warpgroup_backward_shared_bytes(params.head_dim);
    const int64_t in_flight = kWarpgroupBackwardInFlight * warpgroup_backward_step_bytes(params.head_dim);
    add(kWarpgroupKeys[kernel], key_tiles * splits, kThreads, shared_bytes, in_flight);
    add(kWarpgroupQueries[kernel], row_tiles, kThreads, shared_bytes, in_flight);
    add(kWarpgroupSum[kernel], context_tiles, kWarpgroupBackwardOwners, 0, 0);
    return plans;
  }
  const int64_t row_bytes = 2 * params.head_dim, step_rows = masked_backward_step(static_cast<int>(params.head_dim));
  const int64_t key_tile_bytes = 2 * kMaskedBackwardKeys * row_bytes;  // keys and values
  const int64_t step_bytes = step_rows * (2 * row_bytes + static_cast<int64_t>(sizeof(MaskedRowTerms)));
  add(kKeys[kernel], key_tiles * splits, kMaskedBackwardThreads, key_tile_bytes + 2 * step_bytes, step_bytes);
  add(kQueries[kernel], row_tiles, kMaskedBackwardThreads, 2 * key_tile_bytes, key_tile_bytes);
  add(kSum[kernel], context_tiles, kMaskedBackwardThreads, 0, 0);
  return plans;
}

int64_t masked_block_attention_backward_workspace_bytes(const MaskedBlockAttentionParams& params,
                                                        const DeviceProperties& device) {
  masked_attention_kernel(params);
  return Layout(params, shape_of(device), splits_of(params, device)).bytes;
}

}  // namespace dflash::cuda
