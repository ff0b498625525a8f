// Workspace of fuse_features: the packed activations of one pass, then its float32 sums before the norm.
#pragma once
#include <cstdint>

namespace dflash::plan {

struct FuseFeaturesWorkspace {
  int64_t sums_offset;  // bytes
  int64_t bytes;
};
FuseFeaturesWorkspace fuse_features_workspace(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns);

}  // namespace dflash::plan
