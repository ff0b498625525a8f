#pragma once
#include "params/write_context_kv.h"
#include "plan/cuda/head_units.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kContextThreads = 384;  // of a block
constexpr int kContextBlocks = 2;     // resident on a multiprocessor
constexpr int kMostContextRows = 32;  // of a block

// What only project_context_kv asks for, whose products lie in a workspace.
struct WriteProducts {
  int64_t first_row;  // row 0 of kv; rows are written from it on
  const void* bias;   // [layers][2, kv_heads, head_dim] or null
  DType bias_dtype;
  int64_t bias_layer_stride;
};

struct WriteContextKvLaunch {
  WriteContextKvParams op;
  WriteProducts products;
  HeadUnits head;
  uint32_t block_rows, block_layers;
};

// Blocks (rows, keys or values, layers). A block of keys holds the rotation of its rows and the norm weights of its
// layers in shared memory.
LaunchPlan plan_write_context_kv(const WriteContextKvParams& params, const DeviceProperties& device);

// The same for float32 products, the kernel in csrc/cuda/project_context_kv: rows [products.first_row, params.rows).
LaunchPlan plan_write_products(const WriteContextKvParams& params, const WriteProducts& products,
                               const DeviceProperties& device);

}  // namespace dflash::cuda
