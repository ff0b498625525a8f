#pragma once
#include <vector>

#include "params/fuse_features.h"
#include "plan/cuda/weight_stream.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kNormaliseThreads = 256;
constexpr int kNormaliseElements = 8;  // of a 16-byte access

struct FuseFeaturesLaunch {
  FuseFeaturesParams op;
  WeightStream stream;
  float* sums;  // [rows][sums_row_stride], or null where there is no norm: then the products go straight to `out`
  int64_t sums_row_stride;
  bool wide;  // rows of `out` and the norm weight take 16-byte accesses
};

// The products; then, where there is a norm, the norm of the rows, which needs all their columns.
std::vector<LaunchPlan> plan_fuse_features(const FuseFeaturesParams& params, const DeviceProperties& device);

// On any device.
int64_t fuse_features_workspace_bytes(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns);

}  // namespace dflash::cuda
