#pragma once
#include "cpu/isa.h"
#include "params/update_page_bounds.h"

namespace dflash::cpu {

// Slots must have been checked.
void update_page_bounds(const UpdatePageBoundsParams& params);

// Bounds of every group that holds a page which a slot names, anew from the bounds of its pages in the context. These
// must be up to date.
void update_group_bounds(const UpdatePageBoundsParams& params, const GroupBoundsParams& groups);

// The first `rows` rows of one page of one layer, all heads.
struct PageRows {
  const void* k;
  DType dtype;
  int64_t slot_stride, head_stride;  // elements
  int64_t rows, heads, head_dim;
  void* bounds;
  int64_t bounds_head_stride, bounds_part_stride;
};

// The bounds of some pages of one layer, all heads.
struct GroupPages {
  const void* bounds;
  DType dtype;
  int64_t page_stride, head_stride, part_stride;  // elements
  const int32_t* pages;
  int64_t count, heads, head_dim;
  void* group;
  int64_t group_head_stride, group_part_stride;
};

}  // namespace dflash::cpu

// Least and greatest element of every channel, in the dtype of the rows; NaN where a row has one.
DFLASH_DECLARE_KERNEL(void, page_bounds, (const cpu::PageRows& page))
// The least of their minima and the greatest of their maxima.
DFLASH_DECLARE_KERNEL(void, group_bounds, (const cpu::GroupPages& group))
