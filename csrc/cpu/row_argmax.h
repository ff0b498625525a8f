#pragma once
#include "cpu/isa.h"
#include "params/row_argmax.h"

namespace dflash::cpu {

// The largest element of a stretch of a row: NaN counts as the maximum, equal values go to the lower index.
struct ArgmaxPartial {
  float value;
  int64_t index;
};

// The winner of two stretches, `first` lying before `second` in the row.
inline ArgmaxPartial merge_argmax(const ArgmaxPartial& first, const ArgmaxPartial& second) {
  if (first.value != first.value) return first;
  return second.value != second.value || second.value > first.value ? second : first;
}

// Argmax of one row, long rows spread over the threads. Not to be called from inside a task.
ArgmaxPartial argmax_over_threads(const void* row, DType dtype, int64_t columns);

void row_argmax(const RowArgmaxParams& params);

}  // namespace dflash::cpu

// Argmax of `count` > 0 elements of `dtype` at `logits`.
DFLASH_DECLARE_KERNEL(dflash::cpu::ArgmaxPartial, argmax_stretch, (const void* logits, DType dtype, int64_t count))
