#include "plan/cuda/commit_block.h"

namespace dflash::cuda {

LaunchPlan plan_commit_block(const CommitBlockParams& params) {
  constexpr int64_t kThreads = 128;
  return make_launch("commit_block", {ceil_div(params.batch * 32, kThreads)}, {kThreads}, 0, params, 0);
}

}  // namespace dflash::cuda
