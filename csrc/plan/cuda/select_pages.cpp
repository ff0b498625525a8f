#include "plan/cuda/select_pages.h"

#include <algorithm>

#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

// A stretch's first tile waits for lengths, a page and bounds, one after the other: so much is worth that wait.
constexpr int64_t kLeastTilesPerStretch = 2;

}  // namespace

LaunchPlan plan_select_pages(const SelectPagesParams& params, void* workspace, const DeviceProperties& device) {
  static constexpr const char* kEntries[kAttentionEntries] = {
      "select_pages_float16_64_64",   "select_pages_float16_64_128",   "select_pages_float16_96_64",
      "select_pages_float16_96_128",  "select_pages_float16_128_64",   "select_pages_float16_128_128",
      "select_pages_float16_256_64",  "select_pages_float16_256_128",  "select_pages_bfloat16_64_64",
      "select_pages_bfloat16_64_128", "select_pages_bfloat16_96_64",   "select_pages_bfloat16_96_128",
      "select_pages_bfloat16_128_64", "select_pages_bfloat16_128_128", "select_pages_bfloat16_256_64",
      "select_pages_bfloat16_256_128"};
  const int64_t group = params.q_heads / params.kv_heads;
  // Who knows no request's rows takes all of them for one's: it costs registers, not traffic.
  const int64_t most_tokens =
      params.cu_block_lens == nullptr && params.batch > 0 ? params.tokens / params.batch : params.tokens;
  const int64_t row_tile = attention_row_tile(most_tokens * group);
  const char* entry = kEntries[attention_entry(params.dtype, params.head_dim, row_tile)];
  const int head_dim = static_cast<int>(params.head_dim);
  const int64_t threads = attention_threads(head_dim, static_cast<int>(row_tile));
  const int64_t lists = params.batch * params.kv_heads;
  SelectPagesLaunch launch{};
  launch.op = params;
  if (lists == 0) return make_launch(entry, {0}, {threads}, 0, launch, 0);

  check_aligned_rows("q", params.q);
  for (const int64_t stride : {params.q_token_stride, params.q_head_stride}) attention_units("q", stride);
  check_aligned_rows("k_bounds", params.bounds);
  attention_units("k_bounds", params.bounds_part_stride);
  launch.k.page_stride = attention_units("k_bounds", params.bounds_page_stride);
  launch.k.head_stride = attention_units("k_bounds", params.bounds_head_stride);
  launch.k.cache = params.bounds;
  launch.v = launch.k;
  launch.v.cache = static_cast<const unsigned char*>(params.bounds) + params.bounds_part_stride * 2;
  while ((int64_t{1} << launch.context_page_shift) < params.page_size) ++launch.context_page_shift;
  launch.capacity = static_cast<int32_t>(std::min<int64_t>(params.max_pages * params.page_size, INT32_MAX));
  launch.group = static_cast<uint32_t>(group);
  const AttentionResidency residency = attention_residency(params.head_dim, row_tile, device);
  launch.stages = static_cast<uint32_t>(residency.stages);
  launch.shared_keys = static_cast<int32_t>((residency.shared_bytes - 4 * kDigits) / 4);
  // Stretches fill the GPU once.
  const int64_t tiles = ceil_div(params.max_pages, attention_key_tile(head_dim)) + 1;
  const int64_t wanted = residency.blocks * device.multiprocessors / lists;
  const int64_t stretches = std::clamp<int64_t>(wanted, 1, ceil_div(tiles, kLeastTilesPerStretch));
  launch.stretches = static_cast<uint32_t>(lists > kMostCounters ? 1 : stretches);
  launch.least_tiles = kLeastTilesPerStretch;
  launch.arrivals = arrival_counters(workspace);
  launch.keys = reinterpret_cast<uint32_t*>(scratch_of(workspace));
  LaunchPlan plan =
      make_launch(entry, {params.batch * launch.stretches, params.kv_heads}, {threads}, residency.shared_bytes, launch,
                  select_pages_workspace_bytes(params.batch, params.kv_heads, params.max_pages));
  plan.bytes_in_flight = 2 * params.head_dim * 2 * attention_key_tile(head_dim) * (launch.stages - 1);
  return plan;
}

int64_t select_pages_workspace_bytes(int64_t batch, int64_t kv_heads, int64_t max_pages) {
  return kCounterBytes + batch * kv_heads * max_pages * 4;
}

}  // namespace dflash::cuda
