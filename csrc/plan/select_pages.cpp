#include "plan/select_pages.h"

#include <algorithm>

namespace dflash::plan {
namespace {

// A stretch shorter than this costs more in packing queries than it gains.
constexpr int64_t kLeastPagesPerTask = 256;
constexpr int64_t kTasksPerThread = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

PageDivision divide_pages(const SelectPagesParams& params, int64_t context_len) {
  PageDivision division{};
  division.pages = ceil_div(context_len, params.page_size);
  division.sinks = std::min(division.pages, ceil_div(params.sink_tokens, params.page_size));
  const int64_t local = std::max<int64_t>(0, context_len - params.local_tokens) / params.page_size;
  division.local_begin = std::max(division.sinks, local);
  const int64_t always = division.sinks + division.pages - division.local_begin;
  const int64_t left = std::max<int64_t>(0, params.budget_tokens / params.page_size - always);
  const int64_t between = division.local_begin - division.sinks;
  division.chosen = std::min(left, between);
  division.scored = division.chosen > 0 && division.chosen < between;
  return division;
}

int64_t most_selected_pages(const SelectPagesParams& params) {
  // The local tokens may begin at the end of a page and end at the beginning of one.
  const int64_t local = ceil_div(params.local_tokens - 1, params.page_size) + 1;
  const int64_t always = ceil_div(params.sink_tokens, params.page_size) + local;
  return std::min(params.max_pages, std::max(params.budget_tokens / params.page_size, always));
}

int64_t select_pages_workspace_bytes(int64_t batch, int64_t kv_heads, int64_t max_pages) {
  return align(batch * kv_heads * max_pages * static_cast<int64_t>(sizeof(uint64_t)));
}

int64_t pages_per_task(const SelectPagesParams& params, int64_t threads) {
  int64_t longest = 0;
  for (int64_t request = 0; request < params.batch; ++request) {
    longest = std::max<int64_t>(longest, params.context_lens[request * params.context_lens_stride]);
  }
  const int64_t pages = ceil_div(longest, params.page_size);
  const int64_t stretches = ceil_div(kTasksPerThread * threads, params.batch * params.kv_heads);
  return std::max(kLeastPagesPerTask, ceil_div(pages, stretches));
}

SparseBlockAttentionWorkspace sparse_block_attention_workspace(const BlockAttentionShape& shape, int64_t max_pages) {
  SparseBlockAttentionWorkspace workspace{};
  workspace.pages_offset = block_attention_workspace(shape).bytes;
  workspace.lens_offset = workspace.pages_offset + align(shape.batch * shape.kv_heads * max_pages * 4);
  workspace.bytes = workspace.lens_offset + align(shape.batch * shape.kv_heads * 4);
  return workspace;
}

}  // namespace dflash::plan
