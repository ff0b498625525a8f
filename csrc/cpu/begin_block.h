#pragma once
#include "params/begin_block.h"

namespace dflash::cpu {

void begin_block(const BeginBlockParams& params);

}  // namespace dflash::cpu
