#pragma once
#include "cpu/isa.h"
#include "params/update_page_bounds.h"

namespace dflash::cpu {

// Slots must have been checked.
void update_page_bounds(const UpdatePageBoundsParams& params);

// The first `rows` rows of one page of one layer, all heads.
struct PageRows {
  const void* k;
  DType dtype;
  int64_t slot_stride, head_stride;  // elements
  int64_t rows, heads, head_dim;
  void* bounds;
  int64_t bounds_head_stride, bounds_part_stride;
};

}  // namespace dflash::cpu

// Least and greatest element of every channel, in the dtype of the rows; NaN where a row has one.
DFLASH_DECLARE_KERNEL(void, page_bounds, (const cpu::PageRows& page))
