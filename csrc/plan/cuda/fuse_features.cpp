#include "plan/cuda/fuse_features.h"

namespace dflash::cuda {
namespace {

StreamShape shape_of(int64_t taps, int64_t tap_columns, int64_t columns) {
  return {taps, tap_columns, columns, columns, kStreamColumns};
}

int64_t sums_row_floats(int64_t columns) { return ceil_div(columns, kNormaliseElements) * kNormaliseElements; }

struct Offsets {
  int64_t partials, sums, end;
};

// The sums are counted with the norm that may not be asked for.
Offsets offsets_of(const StreamShape& shape, int64_t rows) {
  Offsets at{};
  at.partials = stream_arrivals_bytes(shape);
  at.sums = at.partials + stream_partials_bytes(shape, rows);
  at.end = at.sums + 4 * rows * sums_row_floats(shape.columns);
  return at;
}

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
  const Offsets at = offsets_of(shape, rows);
  unsigned char* workspace = static_cast<unsigned char*>(params.workspace);
  const bool normed = params.norm_weight != nullptr;
  FuseFeaturesLaunch launch{};
  launch.op = params;
  launch.stream = weight_stream(params.gemm, shape, 0, workspace, workspace + at.partials, device);
  launch.sums = normed ? reinterpret_cast<float*>(workspace + at.sums) : nullptr;
  launch.sums_row_stride = sums_row_floats(columns);
  launch.wide = takes_vectors(params);
  const bool half = params.gemm.dtype == DType::kFloat16;
  std::vector<LaunchPlan> plans = {stream_launch(half ? "fuse_features_float16" : "fuse_features_bfloat16", launch,
                                                 launch.stream, rows, at.end)};
  if (normed) {
    const char* entry = half ? "normalise_features_float16" : "normalise_features_bfloat16";
    plans.push_back(make_launch(entry, {columns == 0 ? 0 : rows}, {kNormaliseThreads}, 0, launch, at.end));
  }
  return plans;
}

int64_t fuse_features_zero_bytes(int64_t columns) { return stream_arrivals_bytes(shape_of(1, 1, columns)); }

int64_t fuse_features_workspace_bytes(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
  return offsets_of(shape_of(taps, tap_columns, columns), rows).end;
}

}  // namespace dflash::cuda
