#pragma once
#include "params/remask.h"
#include "plan/cuda/argmax_rows.h"
#include "plan/launch.h"

namespace dflash::cuda {

struct RemaskLaunch {
  RemaskParams op;
  ArgmaxRows rows;      // one for each position of each request
  float* stretch_sums;  // [rows][stretches]: sums of exp(logit - best of the stretch)
  uint64_t* keys;       // [rows], larger where the choice is more confident; 0: not masked
  int64_t* choices;     // [rows]
};

LaunchPlan plan_remask(const RemaskParams& params, void* workspace, const DeviceProperties& device);

// On any device, for any dtype and number of columns.
int64_t remask_workspace_bytes(int64_t batch, int64_t positions);

}  // namespace dflash::cuda
