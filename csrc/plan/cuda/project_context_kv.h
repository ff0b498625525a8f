#pragma once
#include <vector>

#include "params/project_context_kv.h"
#include "plan/cuda/head_units.h"
#include "plan/cuda/op_step.h"
#include "plan/cuda/weight_stream.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kStagedRowFloats = kStreamColumns + 8;  // the padding lets lanes of four rows store without conflicts
constexpr int kProjectVectorElements = 4;             // of a piece: 16 bytes of sums (FloatAccess)

struct ProjectContextKvLaunch {
  ProjectContextKvParams op;
  WeightStream stream;
  HeadUnits head;
  bool vectors;  // heads in pieces of kProjectVectorElements
};

// Up to the rows of kProductRanges, one launch for the product, norm, rotation and write of all layers; tiles of
// columns are then whole heads. Otherwise, and where a head has more channels than a tile columns, float32 products in
// the workspace, and a second launch that norms, rotates and writes them.
std::vector<OpStep> plan_project_context_kv(const ProjectContextKvParams& params, const DeviceProperties& device);

// On any device, however the columns (layers * 2 * kv_heads * head_dim) are cut into heads.
int64_t project_context_kv_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t columns);

}  // namespace dflash::cuda
