#include "cpu/select_pages.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/select_pages_scratch.h"
#include "plan/select_pages.h"

namespace dflash::cpu {
namespace {

int64_t context_len_of(const SelectPagesParams& params, int64_t request) {
  return params.context_lens[request * params.context_lens_stride];
}

void write_selection(const SelectPagesParams& params, int64_t request, int64_t head, uint64_t* keys) {
  const PageDivision division = plan::divide_pages(params, context_len_of(params, request));
  int32_t* selected = params.selected + request * params.selected_batch_stride + head * params.selected_head_stride;
  int64_t count = 0;
  for (int64_t page = 0; page < division.sinks; ++page) selected[count++] = static_cast<int32_t>(page);
  const int64_t first_chosen = count;
  if (division.scored) {
    keys += division.sinks;
    std::nth_element(keys, keys + division.chosen - 1, keys + division.local_begin - division.sinks,
                     std::greater<uint64_t>());
    for (int64_t i = 0; i < division.chosen; ++i) selected[count++] = static_cast<int32_t>(~keys[i] & 0xffffffffu);
    std::sort(selected + first_chosen, selected + count);
  } else {
    for (int64_t i = 0; i < division.chosen; ++i) selected[count++] = static_cast<int32_t>(division.sinks + i);
  }
  for (int64_t page = division.local_begin; page < division.pages; ++page) {
    selected[count++] = static_cast<int32_t>(page);
  }
  params.counts[request * params.counts_batch_stride + head * params.counts_head_stride] = static_cast<int32_t>(count);
  std::fill(selected + count, selected + params.width, -1);
}

}  // namespace

int64_t score_pages_scratch(int64_t head_dim) { return page_score_scratch_layout(head_dim).bytes; }

void select_pages(const SelectPagesParams& params, int64_t threads) {
  const int64_t lists = params.batch * params.kv_heads;
  if (lists == 0) return;
  auto* keys = static_cast<uint64_t*>(params.workspace);
  const plan::PageScoreTasks tasks = plan::page_score_tasks(params, threads);
  const int64_t request_tasks = tasks.groups * tasks.stretches;
  const auto score = DFLASH_KERNEL(score_pages);
  const int64_t scratch_bytes = score_pages_scratch(params.head_dim);
  // Contexts differ, so threads draw tasks one by one instead of getting equal shares.
  std::atomic<int64_t> next{0};
  parallel_tasks(std::min(threads, params.batch * request_tasks), 1, [&](int64_t) {
    void* scratch = thread_scratch(scratch_bytes);
    for (int64_t task = next.fetch_add(1); task < params.batch * request_tasks; task = next.fetch_add(1)) {
      const int64_t request = task / request_tasks;
      const int64_t kv_head = task % request_tasks / tasks.stretches * tasks.heads;
      const PageDivision division = plan::divide_pages(params, context_len_of(params, request));
      const int64_t begin = division.sinks + task % tasks.stretches * tasks.pages;
      const int64_t end = std::min(begin + tasks.pages, division.local_begin);
      const int64_t heads = std::min(tasks.heads, params.kv_heads - kv_head);
      if (!division.scored || begin >= end || heads <= 0) continue;
      const int64_t token = plan::block_begin(params, request);
      const int64_t rows = (plan::block_begin(params, request + 1) - token) * (params.q_heads / params.kv_heads);
      score(params,
            {kv_head, heads, token, rows, params.page_table + request * params.page_table_stride + begin, begin,
             end - begin, keys + (request * params.kv_heads + kv_head) * params.max_pages + begin, params.max_pages},
            scratch);
    }
  });
  parallel_tasks(lists, 1, [&](int64_t list) {
    write_selection(params, list / params.kv_heads, list % params.kv_heads, keys + list * params.max_pages);
  });
}

}  // namespace dflash::cpu
