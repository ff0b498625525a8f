#include "plan/cuda/begin_block.h"

namespace dflash::cuda {

LaunchPlan plan_begin_block(const BeginBlockParams& params) {
  constexpr int64_t kThreads = 128;
  return make_launch("begin_block", {ceil_div(params.batch * params.block, kThreads)}, {kThreads}, 0, params, 0);
}

}  // namespace dflash::cuda
