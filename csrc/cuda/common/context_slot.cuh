// Where a context row goes.
#pragma once
#include <cstdint>

#include "params/write_context_kv.h"

namespace dflash::cuda {

// Slot of a row, or -1: skipped, past row_count, or a slot past the cache (refused on the CPU, not followed here).
__device__ __forceinline__ int64_t context_slot(const WriteContextKvParams& op, int64_t row) {
  int64_t rows = op.rows;
  if (op.row_count != nullptr) rows = min(rows, static_cast<int64_t>(*op.row_count));
  if (row >= rows) return -1;
  const int64_t slot = op.caches.slot_mapping[row * op.caches.slot_mapping_stride];
  return slot < op.caches.pages * op.caches.page_size ? slot : -1;
}

}  // namespace dflash::cuda
