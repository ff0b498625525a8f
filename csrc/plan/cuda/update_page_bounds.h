#pragma once
#include "params/update_page_bounds.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kBoundsThreads = 128;  // of a block
constexpr int kBoundsBlocks = 8;     // resident on a multiprocessor

struct UpdatePageBoundsLaunch {
  UpdatePageBoundsParams op;
  uint32_t pieces;  // of a head: what a lane takes
  uint32_t block_layers;
};

// Blocks (entry of slot_mapping, layers). The block of the entry that names a page's highest slot computes its bounds.
LaunchPlan plan_update_page_bounds(const UpdatePageBoundsParams& params, const DeviceProperties& device);

}  // namespace dflash::cuda
