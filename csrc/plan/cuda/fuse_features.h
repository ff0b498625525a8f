#pragma once
#include <vector>

#include "params/fuse_features.h"
#include "plan/cuda/op_step.h"
#include "plan/cuda/weight_stream.h"

namespace dflash::cuda {

constexpr int kNormaliseThreads = 256;
constexpr int kNormaliseElements = 8;  // of a 16-byte access

// Of both kernels.
struct FuseFeaturesLaunch {
  FuseFeaturesParams op;
  WeightStream stream;
  float* sums;  // [slices][rows][sums_row_stride], or null: then the products go straight to `out`
  int64_t sums_row_stride, sums_section_stride;
  int64_t slice_stride;
  uint32_t slices;    // that the norm adds up: one, or the product of each tap
  int64_t first_row;  // of the norm's launch; row 0 of the sums
  bool wide;          // rows of `out` and the norm weight take 16-byte accesses
};

// The products; then, where there is a norm, the norm of the rows, which needs all their columns.
std::vector<OpStep> plan_fuse_features(const FuseFeaturesParams& params, const DeviceProperties& device);

// On any device.
int64_t fuse_features_workspace_bytes(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns);

// The streaming kernel alone, for an op that goes on with float32 products itself: those of section s and row r lie at
// sums + r * sums_row_stride + s * sums_section_stride.
LaunchPlan plan_products(const SkinnyGemm& gemm, const StreamShape& shape, const int32_t* row_count, void* workspace,
                         float* sums, int64_t sums_row_stride, int64_t sums_section_stride, int64_t workspace_bytes,
                         const DeviceProperties& device);

}  // namespace dflash::cuda
