#include "plan/cuda/masked_block_attention_backward.h"

#include <algorithm>

namespace dflash::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr MaskTileShape kTileShape{kMaskedBackwardRows, kMaskedBackwardKeys, true};

// In the order of masked_attention_kernel().
constexpr const char* kTerms[] = {"masked_backward_terms_float16_64", "masked_backward_terms_float16_128",
                                  "masked_backward_terms_bfloat16_64", "masked_backward_terms_bfloat16_128"};
constexpr const char* kKeys[] = {"masked_backward_keys_float16_64", "masked_backward_keys_float16_128",
                                 "masked_backward_keys_bfloat16_64", "masked_backward_keys_bfloat16_128"};
constexpr const char* kQueries[] = {"masked_backward_queries_float16_64", "masked_backward_queries_float16_128",
                                    "masked_backward_queries_bfloat16_64", "masked_backward_queries_bfloat16_128"};
constexpr const char* kSum[] = {"masked_backward_sum_float16_64", "masked_backward_sum_float16_128",
                                "masked_backward_sum_bfloat16_64", "masked_backward_sum_bfloat16_128"};

int64_t row_tiles_of(const MaskedBlockAttentionParams& params) {
  return ceil_div(params.queries * (params.q_heads / params.kv_heads), kMaskedBackwardRows);
}

int64_t context_tiles_of(const MaskedBlockAttentionParams& params) {
  return ceil_div(context_tokens(params), kMaskedBackwardKeys);
}

// A context tile is walked by the rows of all anchors behind it, the first tile by nearly all rows; the longest walk
// decides when the kernel ends. Two walks for each place on the GPU are enough for the schedule, longest first, to even
// them out.
int64_t splits_of(const MaskedBlockAttentionParams& params, const DeviceProperties& device) {
  const int64_t walks = context_tiles_of(params) * params.kv_heads;
  if (walks == 0) return 1;
  // On a multiprocessor: registers leave room for two, shared memory of 100 KB for one that takes 64.5 KB.
  const bool small = device.shared_bytes_per_multiprocessor < 164 * 1024;
  const int64_t blocks = small && params.head_dim > 64 ? 1 : 2;
  const int64_t wanted = ceil_div(2 * blocks * device.multiprocessors, walks);
  return std::max<int64_t>(1,
                           std::min(wanted, row_tiles_of(params) / (kMaskedBackwardLeastRows / kMaskedBackwardRows)));
}

// Offsets of the workspace's parts behind the mask's tiles, each on 16 bytes.
struct Layout {
  Layout(const MaskedBlockAttentionParams& params, int64_t splits)
      : terms(mask_tiles_bytes(params, kTileShape)),
        partials(terms + params.kv_heads * row_tiles_of(params) * kMaskedBackwardRows *
                             static_cast<int64_t>(sizeof(MaskedRowTerms))),
        bytes(partials + (splits == 1 ? 0
                                      : context_tiles_of(params) * params.kv_heads * splits *
                                            masked_backward_partial_floats(params.head_dim, kMaskedBackwardKeys) * 4)) {
  }
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
  std::vector<LaunchPlan> plans = plan_mask_tiles(params, kTileShape, workspace, &launch.tiles);
  const int64_t splits = splits_of(params, device);
  const Layout layout(params, splits);
  auto* bytes = static_cast<unsigned char*>(workspace);
  launch.scale_log2 = static_cast<float>(params.scale * kLog2E);
  launch.rows = static_cast<int32_t>(launch.tiles.queries * launch.tiles.group);
  launch.splits = static_cast<int32_t>(splits);
  launch.terms = reinterpret_cast<MaskedRowTerms*>(bytes + layout.terms);
  if (splits > 1) launch.partials = reinterpret_cast<float*>(bytes + layout.partials);

  const int64_t row_bytes = 2 * params.head_dim, step_rows = masked_backward_step(static_cast<int>(params.head_dim));
  const int64_t key_tile_bytes = 2 * kMaskedBackwardKeys * row_bytes;  // keys and values
  const int64_t step_bytes = step_rows * (2 * row_bytes + static_cast<int64_t>(sizeof(MaskedRowTerms)));
  // Blocks (tiles x kv heads): those with the most work come first.
  const auto add = [&](const char* entry, int64_t tiles, int64_t shared_bytes, int64_t in_flight) {
    if (tiles == 0) return;
    plans.push_back(
        make_launch(entry, {tiles * params.kv_heads}, {kMaskedBackwardThreads}, shared_bytes, launch, layout.bytes));
    plans.back().bytes_in_flight = in_flight;
  };
  add(kTerms[kernel], launch.tiles.row_tile_count, 0, 0);
  add(kKeys[kernel], launch.tiles.key_tile_count * splits, key_tile_bytes + 2 * step_bytes, step_bytes);
  add(kQueries[kernel], launch.tiles.row_tile_count, 2 * key_tile_bytes, key_tile_bytes);
  if (splits > 1) add(kSum[kernel], launch.tiles.context_tiles, 0, 0);
  return plans;
}

int64_t masked_block_attention_backward_workspace_bytes(const MaskedBlockAttentionParams& params,
                                                        const DeviceProperties& device) {
  masked_attention_kernel(params);
  return Layout(params, splits_of(params, device)).bytes;
}

}  // namespace dflash::cuda
