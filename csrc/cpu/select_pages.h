#pragma once
#include "cpu/isa.h"
#include "params/select_pages.h"

namespace dflash::cpu {

void select_pages(const SelectPagesParams& params, int64_t threads);

// A stretch of the pages of one request, for some kv heads. They take turns, tile by tile, because their bounds of a
// page lie side by side in most layouts. Heads times rows, each rounded up to whole vectors, are at most
// kBlockAttentionRows, or it is one head.
struct PageScoreTask {
  int64_t kv_head, heads;
  int64_t first_token, rows;  // of each head; row = block position * group + head within the group
  const int32_t* pages;       // of the cache
  const int32_t* indices;     // of the pages in the request's row of the page table; null: they follow each other
  int64_t first_page, count;  // index of pages[0] in that row, where they do
  uint64_t* keys;             // [heads][key_stride], of which [count] are written
  int64_t key_stride;
};

// Bytes of thread scratch a task needs (for the widest vectors).
int64_t score_pages_scratch(int64_t head_dim);

}  // namespace dflash::cpu

// keys[i]: greater for a greater score, and of equal scores for the lower page. The low word is the complement of the
// page's index; a score that is NaN counts as the greatest.
DFLASH_DECLARE_KERNEL(void, score_pages,
                      (const SelectPagesParams& params, const cpu::PageScoreTask& task, void* scratch))
