// How select_pages divides a context and its work, and the workspace of the ops around page selection.
#pragma once
#include <cstdint>

#include "params/select_pages.h"
#include "plan/block_attention.h"

namespace dflash::plan {

PageDivision divide_pages(const SelectPagesParams& params, int64_t context_len);

// The most pages that may be selected of a context of any length.
int64_t most_selected_pages(const SelectPagesParams& params);

// uint64_t[batch][kv_heads][max_pages]: a page's score and index as one number.
int64_t select_pages_workspace_bytes(int64_t batch, int64_t kv_heads, int64_t max_pages);

// A task scores a stretch of so many pages for so many heads of one request.
struct PageScoreTasks {
  int64_t heads, pages;
  int64_t groups, stretches;  // of all heads and of the longest context: tasks of a request
};
PageScoreTasks page_score_tasks(const SelectPagesParams& params, int64_t threads);

// Rows of q where the request's block begins; params.batch: where the last one's ends.
int64_t block_begin(const SelectPagesParams& params, int64_t request);

// sparse_block_attention: that of block_attention, then the pages of each head and how many rows they hold.
struct SparseBlockAttentionWorkspace {
  int64_t pages_offset;  // int32_t[batch][kv_heads][max_pages]
  int64_t lens_offset;   // int32_t[batch][kv_heads]
  int64_t bytes;
};
SparseBlockAttentionWorkspace sparse_block_attention_workspace(const BlockAttentionShape& shape, int64_t max_pages);

}  // namespace dflash::plan
