#pragma once
#include "params/write_context_kv.h"

namespace dflash::cpu {

// Slots and positions of rows that are written must have been checked.
void write_context_kv(const WriteContextKvParams& params);

}  // namespace dflash::cpu
