#include "plan/cuda/fuse_features.h"

#include <algorithm>

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

LaunchPlan stream_products(const FuseFeaturesLaunch& launch, int64_t workspace_bytes) {
  const char* entry = launch.op.gemm.dtype == DType::kFloat16 ? "fuse_features_float16" : "fuse_features_bfloat16";
  return stream_launch(entry, launch, launch.stream, launch.op.gemm.activations.rows, workspace_bytes);
}

// `rows` from launch.first_row on.
LaunchPlan normalise(const FuseFeaturesLaunch& launch, int64_t rows, int64_t workspace_bytes) {
  constexpr const char* kEntries[3] = {"normalise_features_float32", "normalise_features_float16",
                                       "normalise_features_bfloat16"};
  LaunchPlan plan =
      make_launch(kEntries[static_cast<int>(launch.op.gemm.dtype)], {launch.op.gemm.weight.columns == 0 ? 0 : rows},
                  {kNormaliseThreads}, 0, launch, workspace_bytes);
  plan.overlaps = true;
  return plan;
}

// A product for each tap, which the norm adds up.
std::vector<OpStep> library_steps(FuseFeaturesLaunch launch, int64_t workspace_bytes) {
  const SkinnyGemm& gemm = launch.op.gemm;
  const GemmActivations& taps = gemm.activations;
  const int64_t most_rows = std::min(taps.rows, kLibraryRows);
  launch.slices = static_cast<uint32_t>(taps.piece_count);
  launch.slice_stride = most_rows * launch.sums_row_stride;
  launch.sums = reinterpret_cast<float*>(scratch_of(launch.op.workspace));
  std::vector<OpStep> steps;
  for (int64_t first = 0; first < taps.rows && gemm.weight.columns > 0; first += kLibraryRows) {
    const int64_t rows = std::min(taps.rows - first, kLibraryRows);
    std::vector<LibraryProduct> products;
    for (int64_t tap = 0; tap < taps.piece_count; ++tap) {
      products.push_back({advanced(taps.pieces[tap], gemm.dtype, first * taps.row_strides[tap]),
                          advanced(gemm.weight.data, gemm.dtype, tap * taps.piece_columns),
                          launch.sums + tap * launch.slice_stride, rows, gemm.weight.columns, taps.piece_columns,
                          taps.row_strides[tap], gemm.weight.row_stride, launch.sums_row_stride, gemm.dtype});
    }
    launch.first_row = first;
    steps.push_back({std::move(products), normalise(launch, rows, workspace_bytes)});
  }
  return steps;
}

}  // namespace

std::vector<OpStep> plan_fuse_features(const FuseFeaturesParams& params, const DeviceProperties& device) {
  const GemmActivations& activations = params.gemm.activations;
  const int64_t rows = activations.rows, columns = params.gemm.weight.columns;
  const StreamShape shape = shape_of(activations.piece_count, activations.piece_columns, columns);
  const int64_t workspace_bytes =
      fuse_features_workspace_bytes(rows, activations.piece_count, activations.piece_columns, columns);
  FuseFeaturesLaunch launch{};
  launch.op = params;
  launch.sums_row_stride = sums_row_floats(columns);
  launch.wide = takes_vectors(params);
  if (product_way(rows, params.gemm.dtype, params.row_count != nullptr) == ProductWay::kLibrary) {
    return library_steps(launch, workspace_bytes);
  }
  launch.stream = weight_stream(params.gemm, shape, 0, params.workspace, device);
  const bool normed = params.norm_weight != nullptr;
  unsigned char* sums = scratch_of(params.workspace) + stream_partials_bytes(shape, rows);
  launch.sums = normed ? reinterpret_cast<float*>(sums) : nullptr;
  launch.slices = 1;
  std::vector<OpStep> steps = {{{}, stream_products(launch, workspace_bytes)}};
  if (normed) steps.push_back({{}, normalise(launch, rows, workspace_bytes)});
  return steps;
}

// For any dtype, with or without a norm and a row count.
int64_t fuse_features_workspace_bytes(int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
  const int64_t row_bytes = 4 * sums_row_floats(columns);
  const int64_t streamed = stream_partials_bytes(shape_of(taps, tap_columns, columns), rows) + rows * row_bytes;
  return kCounterBytes + std::max(streamed, taps * std::min(rows, kLibraryRows) * row_bytes);
}

LaunchPlan plan_products(const SkinnyGemm& gemm, const StreamShape& shape, const int32_t* row_count, void* workspace,
                         float* sums, int64_t sums_row_stride, int64_t sums_section_stride, int64_t workspace_bytes,
                         const DeviceProperties& device) {
  FuseFeaturesLaunch launch{};
  launch.op.gemm = gemm;
  launch.op.row_count = row_count;
  launch.stream = weight_stream(gemm, shape, 0, workspace, device);
  launch.sums = sums;
  launch.sums_row_stride = sums_row_stride;
  launch.sums_section_stride = sums_section_stride;
  return stream_products(launch, workspace_bytes);
}

}  // namespace dflash::cuda
