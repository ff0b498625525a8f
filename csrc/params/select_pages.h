#pragma once
#include "params/dtype.h"
#include "params/host_device.h"

namespace dflash {

// All strides count elements; the head_dim of q and bounds is contiguous.
struct SelectPagesParams {
  const void* q;  // [tokens, q_heads, head_dim]
  int64_t q_token_stride, q_head_stride;
  const void* bounds;  // [pages, kv_heads, 2, head_dim]: minima, then maxima
  int64_t bounds_page_stride, bounds_head_stride, bounds_part_stride;
  const int32_t* page_table;  // [batch, max_pages]
  int64_t page_table_stride;
  const int32_t* context_lens;  // [batch]
  int64_t context_lens_stride;
  const int32_t* cu_block_lens;  // [batch + 1], or null: tokens / batch rows each
  int64_t cu_block_lens_stride;
  int32_t* selected;  // [batch, kv_heads, width], the last dimension contiguous
  int64_t selected_batch_stride, selected_head_stride;
  int32_t* counts;  // [batch, kv_heads]
  int64_t counts_batch_stride, counts_head_stride;
  void* workspace;

  DType dtype;
  int64_t batch, tokens, q_heads, kv_heads, head_dim, max_pages, page_size, width;
  int64_t budget_tokens, sink_tokens, local_tokens;

  // Null: none. Else bounds over `group_pages` pages that follow each other in a request's context,
  // [batch, ceil(max_pages / group_pages), kv_heads, 2, head_dim].
  const void* group_bounds;
  int64_t group_batch_stride, group_stride, group_head_stride, group_part_stride;
  int64_t group_pages;
};

// Pages [0, sinks) and [local_begin, pages) of a context are always kept, `chosen` of those between.
struct PageDivision {
  int64_t pages, sinks, local_begin, chosen;
  bool scored;  // by their score: some but not all
};

// `page_shift`: log2 of the page size.
DFLASH_HOST_DEVICE inline PageDivision divide_pages(const SelectPagesParams& params, int page_shift,
                                                    int64_t context_len) {
  const int64_t last_row = params.page_size - 1, sinks = (params.sink_tokens + last_row) >> page_shift;
  const int64_t local = context_len > params.local_tokens ? (context_len - params.local_tokens) >> page_shift : 0;
  PageDivision division{};
  division.pages = (context_len + last_row) >> page_shift;
  division.sinks = sinks < division.pages ? sinks : division.pages;
  division.local_begin = local > division.sinks ? local : division.sinks;
  const int64_t between = division.local_begin - division.sinks;
  const int64_t left = (params.budget_tokens >> page_shift) - (division.pages - between);
  division.chosen = left < 0 ? 0 : left < between ? left : between;
  division.scored = division.chosen > 0 && division.chosen < between;
  return division;
}

// Which pages a kv head attends to, as indices into its request's row of the page table.
struct PageSelection {
  const int32_t* selected;  // [batch, kv_heads, width], ascending
  int64_t batch_stride, head_stride;
  const int32_t* counts;  // [batch, kv_heads]
  int64_t counts_batch_stride, counts_head_stride;
};

}  // namespace dflash
