#pragma once
#include "params/lm_head_argmax.h"
#include "plan/cuda/weight_stream.h"
#include "plan/launch.h"

namespace dflash::cuda {

struct LmHeadArgmaxLaunch {
  LmHeadArgmaxParams op;
  WeightStream stream;
  uint32_t* row_arrivals;  // [row tiles], zero before a launch and after it
  uint64_t* best;          // [rows], the same
};

LaunchPlan plan_lm_head_argmax(const LmHeadArgmaxParams& params, const DeviceProperties& device);

// On any device. The first `lm_head_argmax_zero_bytes` of it are zero before the first launch and after each.
int64_t lm_head_argmax_zero_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size);
int64_t lm_head_argmax_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size);

}  // namespace dflash::cuda
