#pragma once
#include "cpu/isa.h"
#include "params/verify.h"

namespace dflash::cpu {

void verify_sampled(const VerifyParams& params, const SamplingParams& sampling);

}  // namespace dflash::cpu

// Converts `count` elements to float32.
DFLASH_DECLARE_KERNEL(void, row_to_float, (const void* logits, DType dtype, int64_t count, float* values))
// weights[i] = exp((values[i] - maximum) * scale); returns their sum. weights may be null.
DFLASH_DECLARE_KERNEL(double, exp_weights,
                      (const float* values, int64_t count, float maximum, float scale, float* weights))
