#include "plan/select_pages.h"

#include <algorithm>

#include "plan/size.h"

namespace dflash::plan {
namespace {

// A stretch shorter than this costs more in packing queries than it gains.
constexpr int64_t kLeastPagesPerTask = 256;
constexpr int64_t kTasksPerThread = 2;
// Each head's rows are padded to whole vectors.
constexpr int64_t kRowAlignment = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

PageDivision divide_pages(const SelectPagesParams& params, int64_t context_len) {
  int page_shift = 0;
  while ((int64_t{1} << page_shift) < params.page_size) ++page_shift;
  return dflash::divide_pages(params, page_shift, context_len);
}

int64_t most_selected_pages(const SelectPagesParams& params) {
  // The local tokens may begin at the end of a page and end at the beginning of one.
  const int64_t local = ceil_div(params.local_tokens - 1, params.page_size) + 1;
  const int64_t always = ceil_div(params.sink_tokens, params.page_size) + local;
  return std::min(params.max_pages, std::max(params.budget_tokens / params.page_size, always));
}

int64_t select_pages_workspace_bytes(int64_t batch, int64_t kv_heads, int64_t max_pages) {
  return (Size(8) * batch * kv_heads * max_pages).rounded_up(64).value();  // 64 bits for each page
}

int64_t block_begin(const SelectPagesParams& params, int64_t request) {
  if (params.cu_block_lens == nullptr) return request * (params.tokens / params.batch);
  return params.cu_block_lens[request * params.cu_block_lens_stride];
}

PageScoreTasks page_score_tasks(const SelectPagesParams& params, int64_t threads) {
  int64_t longest = 0, most_tokens = 1;
  for (int64_t request = 0; request < params.batch; ++request) {
    longest = std::max<int64_t>(longest, params.context_lens[request * params.context_lens_stride]);
    most_tokens = std::max(most_tokens, block_begin(params, request + 1) - block_begin(params, request));
  }
  const int64_t rows = ceil_div(most_tokens * (params.q_heads / params.kv_heads), kRowAlignment) * kRowAlignment;
  const int64_t heads_fit = std::max<int64_t>(1, kBlockAttentionRows / rows);
  PageScoreTasks tasks{};
  tasks.groups = ceil_div(params.kv_heads, heads_fit);
  tasks.heads = ceil_div(params.kv_heads, tasks.groups);
  const int64_t pages = ceil_div(longest, params.page_size);
  const int64_t stretches = ceil_div(kTasksPerThread * threads, params.batch * tasks.groups);
  tasks.pages = std::max(kLeastPagesPerTask, ceil_div(pages, stretches));
  tasks.stretches = ceil_div(pages, tasks.pages);
  return tasks;
}

SparseBlockAttentionWorkspace sparse_block_attention_workspace(const BlockAttentionShape& shape, int64_t max_pages) {
  SparseBlockAttentionWorkspace workspace{};
  const Size lists = Size(4) * shape.batch * shape.kv_heads;
  const Size pages_offset = block_attention_workspace(shape).bytes;
  const Size lens_offset = pages_offset + (lists * max_pages).rounded_up(64);
  workspace.pages_offset = pages_offset.value();
  workspace.lens_offset = lens_offset.value();
  workspace.bytes = (lens_offset + lists.rounded_up(64)).value();
  return workspace;
}

}  // namespace dflash::plan
