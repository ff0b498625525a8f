#pragma once
#include "params/write_context_kv.h"
#include "plan/cuda/head_units.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kContextThreads = 384;  // of a block
constexpr int kContextBlocks = 2;     // resident on a multiprocessor
constexpr int kMostContextRows = 32;  // of a block

struct WriteContextKvLaunch {
  WriteContextKvParams op;
  HeadUnits head;
  uint32_t block_rows, block_layers;
};

// Blocks (rows, keys or values, layers). A block of keys holds the rotation of its rows and the norm weights of its
// layers in shared memory.
LaunchPlan plan_write_context_kv(const WriteContextKvParams& params, const DeviceProperties& device);

}  // namespace dflash::cuda
