#pragma once
#include "params/norm_rope_qkv.h"
#include "plan/cuda/head_units.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kNormRopeThreads = 512;  // of a block
constexpr int kNormRopeBlocks = 2;     // resident on a multiprocessor
constexpr int kMostNormRopeRows = 8;   // of a block

struct NormRopeQkvLaunch {
  NormRopeQkvParams op;
  HeadUnits head;
  uint32_t block_rows;
};

// A block takes all heads of some rows.
LaunchPlan plan_norm_rope_qkv(const NormRopeQkvParams& params, const DeviceProperties& device);

}  // namespace dflash::cuda
