#pragma once
#include "params/begin_block.h"
#include "plan/launch.h"

namespace dflash::cuda {

// One thread for each row of each request's block.
LaunchPlan plan_begin_block(const BeginBlockParams& params);

}  // namespace dflash::cuda
