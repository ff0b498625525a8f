#pragma once
#include "params/row_argmax.h"
#include "plan/cuda/argmax_rows.h"
#include "plan/launch.h"

namespace dflash::cuda {

struct RowArgmaxLaunch {
  RowArgmaxParams op;
  ArgmaxRows rows;
};

LaunchPlan plan_row_argmax(const RowArgmaxParams& params, void* workspace, const DeviceProperties& device);

}  // namespace dflash::cuda
