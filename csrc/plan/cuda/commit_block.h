#pragma once
#include "params/commit_block.h"
#include "plan/launch.h"

namespace dflash::cuda {

// One warp for each request.
LaunchPlan plan_commit_block(const CommitBlockParams& params);

}  // namespace dflash::cuda
