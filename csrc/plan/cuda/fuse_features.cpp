#include "plan/cuda/fuse_features.h"

#include "plan/cuda/workspace.h"

namespace dflash::cuda {
namespace {

StreamShape shape_of(int64_t taps, int64_t tap_columns, int64_t columns) {
  return {taps, tap_columns, columns, columns, kStreamColumns};
}

int64_t sums_row_floats(int64_t columns) { return ceil_div(columns, kNormaliseElements) * kNormaliseElements; }

bool takes_vectors(const FuseFeaturesParams& params) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return aligned(params.out) && aligned(params.norm_weight) && params.out_row_stride % kNormaliseElements == 0 &&
         params.gemm.weight.columns % kNormaliseElements == 0;
}

}  // namespace

std::vector<LaunchPlan> plan_fuse_features(const FuseFeaturesParams& params, const DeviceProperties& device) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t rows = activations.rows, columns = params.gemm.weight.columns;
  const StreamShape shape = shape_of(activations.piece_count, activations.piece_columns, columns);
  const int64_t workspace_bytes =
      fuse_features_workspace_bytes(rows, activations.piece_count, activations.piece_columns, columns);
  const bool normed = params.norm_weight != nullptr;
  FuseFeaturesLaunch launch{};
  launch.op = params;
  launch.stream = weight_stream(params.gemm, shape, 0, params.workspace, device);
  unsigned char* sums = scratch_of(params.workspace) + stream_partials_bytes(shape, rows);
  launch.sums = normed ? reinterpret_cast<float*>(sums) : nullptr;
  launch.sums_row_stride = sums_row_floats(columns);
  launch.wide = takes_vectors(params);
  const bool half = params.gemm.dtype == DType::kFloat16;
  std::vector<LaunchPlan> plans = {stream_launch(half ? "fuse_features_float16" : "fuse_features_bfloat16", launch,
                                                 launch.stream, rows, workspace_bytes)};
  if (normed) {
    const char* entry = half ? "normalise_features_float16" : "normalise_features_bfloat16";
    plans.push_back(make_launch(entry, {columns == 0 ? 0 : rows}, {kNormaliseThreads}, 0, launch, workspace_bytes));
  }
  return plans;
}

// The sums are counted with the norm that may not be asked for.
int64_t fuse_features_workspace_bytes(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
  return kCounterBytes + stream_partials_bytes(shape_of(taps, tap_columns, columns), rows) +
         4 * rows * sums_row_floats(columns);
}

}  // namespace dflash::cuda
