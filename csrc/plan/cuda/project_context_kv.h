#pragma once
#include "params/project_context_kv.h"
#include "plan/cuda/head_units.h"
#include "plan/cuda/weight_stream.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kStagedRowFloats = kStreamColumns + 8;  // the padding lets lanes of four rows store without conflicts
constexpr int kProjectVectorElements = 4;             // of a piece: 16 bytes of sums

struct ProjectContextKvLaunch {
  ProjectContextKvParams op;
  WeightStream stream;
  HeadUnits head;
  bool vectors;  // heads in pieces of kProjectVectorElements
};

// One launch for the product, norm, rotation and write of all layers. Tiles of columns are whole heads, of at most
// kStreamColumns channels.
LaunchPlan plan_project_context_kv(const ProjectContextKvParams& params, const DeviceProperties& device);

// On any device, however the columns (layers * 2 * kv_heads * head_dim) are cut into heads.
int64_t project_context_kv_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t columns);

}  // namespace dflash::cuda
