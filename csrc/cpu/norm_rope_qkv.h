#pragma once
#include "params/norm_rope_qkv.h"

namespace dflash::cpu {

// Positions must have been checked.
void norm_rope_qkv(const NormRopeQkvParams& params);

}  // namespace dflash::cpu
