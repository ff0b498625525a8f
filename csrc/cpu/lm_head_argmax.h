#pragma once
#include "params/lm_head_argmax.h"

namespace dflash::cpu {

void lm_head_argmax(const LmHeadArgmaxParams& params);

}  // namespace dflash::cpu
