#include "plan/cuda/row_argmax.h"

namespace dflash::cuda {

LaunchPlan plan_row_argmax(const RowArgmaxParams& params, void* workspace, const DeviceProperties& device) {
  constexpr const char* kEntries[] = {"row_argmax_float32", "row_argmax_float16", "row_argmax_bfloat16"};
  const RowArgmaxLaunch launch{params, argmax_rows(params.rows, params.columns, params.dtype, workspace, device)};
  return make_launch(kEntries[static_cast<int>(params.dtype)], {params.rows, launch.rows.stretches}, {kArgmaxThreads},
                     0, launch, argmax_rows_workspace_bytes(params.rows));
}

}  // namespace dflash::cuda
