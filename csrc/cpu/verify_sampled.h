#pragma once
#include "params/verify.h"

namespace dflash::cpu {

void verify_sampled(const VerifyParams& params, const SamplingParams& sampling);

}  // namespace dflash::cpu
