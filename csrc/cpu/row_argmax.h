#pragma once
#include "cpu/isa.h"
#include "params/row_argmax.h"

namespace dflash::cpu {

// The largest element of a stretch of a row: NaN counts as the maximum, equal values go to the lower index.
struct ArgmaxPartial {
  float value;
  int64_t index;
};

void row_argmax(const RowArgmaxParams& params);

}  // namespace dflash::cpu

// Argmax of `count` > 0 elements of `dtype` at `logits`.
DFLASH_DECLARE_KERNEL(dflash::cpu::ArgmaxPartial, argmax_stretch, (const void* logits, DType dtype, int64_t count))
