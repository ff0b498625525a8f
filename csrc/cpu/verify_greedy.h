#pragma once
#include "params/verify.h"

namespace dflash::cpu {

void verify_greedy(const VerifyParams& params);

}  // namespace dflash::cpu
