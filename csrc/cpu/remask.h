#pragma once
#include "cpu/isa.h"
#include "params/remask.h"

namespace dflash::cpu {

void remask(const RemaskParams& params);

}  // namespace dflash::cpu

// The sum of exp(logit - maximum) over `count` logits of `dtype`.
DFLASH_DECLARE_KERNEL(double, exp_sum, (const void* logits, DType dtype, int64_t count, float maximum))
