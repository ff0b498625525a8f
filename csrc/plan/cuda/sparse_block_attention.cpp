#include "plan/cuda/sparse_block_attention.h"

#include <algorithm>

namespace dflash::cuda {

LaunchPlan plan_sparse_block_attention(const BlockAttentionParams& params, const PageSelection& selection,
                                       int64_t width, void* workspace, const DeviceProperties& device) {
  static constexpr const char* kEntries[kAttentionEntries] = {
      "sparse_block_attention_float16_64_64",   "sparse_block_attention_float16_64_128",
      "sparse_block_attention_float16_96_64",   "sparse_block_attention_float16_96_128",
      "sparse_block_attention_float16_128_64",  "sparse_block_attention_float16_128_128",
      "sparse_block_attention_float16_256_64",  "sparse_block_attention_float16_256_128",
      "sparse_block_attention_bfloat16_64_64",  "sparse_block_attention_bfloat16_64_128",
      "sparse_block_attention_bfloat16_96_64",  "sparse_block_attention_bfloat16_96_128",
      "sparse_block_attention_bfloat16_128_64", "sparse_block_attention_bfloat16_128_128",
      "sparse_block_attention_bfloat16_256_64", "sparse_block_attention_bfloat16_256_128"};
  // A selection that is used again grows by what is written meanwhile; a page is room for that.
  const int64_t likely_pages = std::min(params.max_pages, width + 1);
  const AttentionPlan attention = plan_attention(params, likely_pages * params.page_size, workspace, device);
  const SparseBlockAttentionLaunch launch{attention.launch, selection, static_cast<int32_t>(width),
                                          static_cast<uint32_t>(params.max_pages)};
  LaunchPlan plan = make_launch(kEntries[attention.entry], attention.grid, attention.block, attention.shared_bytes,
                                launch, attention.workspace_bytes);
  plan.bytes_in_flight = attention.bytes_in_flight;
  return plan;
}

}  // namespace dflash::cuda
