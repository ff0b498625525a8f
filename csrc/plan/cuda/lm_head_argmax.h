#pragma once
#include "params/lm_head_argmax.h"
#include "plan/cuda/weight_stream.h"
#include "plan/cuda/workspace.h"
#include "plan/launch.h"

namespace dflash::cuda {

struct LmHeadArgmaxLaunch {
  LmHeadArgmaxParams op;
  WeightStream stream;
  uint32_t* row_arrivals;  // [row tiles], of the workspace's counters
  uint64_t* bests;         // [row tiles][shares][kStreamRows]
};

LaunchPlan plan_lm_head_argmax(const LmHeadArgmaxParams& params, const DeviceProperties& device);

// Row tiles have a counter each.
constexpr int64_t kMostHeadRows = kStreamRows * kMostCounters;

int64_t lm_head_argmax_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t vocab_size);  // on any device

}  // namespace dflash::cuda
