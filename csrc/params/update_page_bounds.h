#pragma once
#include "params/write_context_kv.h"

namespace dflash {

struct PageBoundsLayer {
  const void* k;  // [pages, page_size, kv_heads, head_dim], head_dim contiguous; strides in elements
  int64_t k_page_stride, k_slot_stride, k_head_stride;
  void* bounds;  // [pages, kv_heads, 2, head_dim]: minima, then maxima; the cache's dtype
  int64_t bounds_page_stride, bounds_head_stride, bounds_part_stride;
};

// All layers have one shape and one dtype, and strides of their own.
struct UpdatePageBoundsParams {
  PageBoundsLayer layers[kMaxContextLayers];
  DType dtype;
  int64_t layer_count, pages, page_size, kv_heads, head_dim;
  const int64_t* slot_mapping;  // [rows], page * page_size + offset, -1: skip
  int64_t slot_mapping_stride, rows;
  const int32_t* row_count;  // one element, or null: all rows
};

// Bounds over groups of `group_pages` pages that follow each other in a request's context.
struct GroupBoundsLayer {
  void* bounds;  // [batch, groups, kv_heads, 2, head_dim], the dtype of the pages' bounds
  int64_t batch_stride, group_stride, head_stride, part_stride;
};
struct GroupBoundsParams {
  GroupBoundsLayer layers[kMaxContextLayers];  // one for each of the pages' bounds
  int64_t batch, groups, group_pages;
  const int32_t* page_table;  // [batch, max_pages]
  int64_t page_table_stride;
  const int32_t* context_lens;  // [batch]
  int64_t context_lens_stride;
};

}  // namespace dflash
