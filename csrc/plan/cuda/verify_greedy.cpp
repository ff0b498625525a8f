#include "plan/cuda/verify_greedy.h"

namespace dflash::cuda {
namespace {

constexpr int64_t kThreads = 128;  // of a block that compares ids

}  // namespace

LaunchPlan plan_verify_greedy(const VerifyParams& params, void* workspace, const DeviceProperties& device) {
  constexpr const char* kEntries[] = {"verify_greedy_float32", "verify_greedy_float16", "verify_greedy_bfloat16"};
  VerifyGreedyLaunch launch{params, {}};
  if (params.target_ids != nullptr) {
    return make_launch("verify_greedy_ids", {ceil_div(params.batch * 32, kThreads)}, {kThreads}, 0, launch, 0);
  }
  const int64_t rows = params.batch * (params.drafts + 1);
  launch.rows = argmax_rows(rows, params.vocabulary, params.dtype, workspace, device);
  return make_launch(kEntries[static_cast<int>(params.dtype)], {rows, launch.rows.stretches}, {kArgmaxThreads}, 0,
                     launch, argmax_rows_workspace_bytes(rows));
}

}  // namespace dflash::cuda
