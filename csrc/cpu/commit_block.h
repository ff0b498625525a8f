#pragma once
#include "params/commit_block.h"

namespace dflash::cpu {

void commit_block(const CommitBlockParams& params);

}  // namespace dflash::cpu
