#pragma once
#include "params/verify.h"
#include "plan/cuda/argmax_rows.h"
#include "plan/launch.h"

namespace dflash::cuda {

struct VerifyGreedyLaunch {
  VerifyParams op;
  ArgmaxRows rows;  // unused where the target's ids are given
};

// One warp for each request where ids are given, blocks of argmax_rows where logits are.
LaunchPlan plan_verify_greedy(const VerifyParams& params, void* workspace, const DeviceProperties& device);

}  // namespace dflash::cuda
