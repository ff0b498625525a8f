#include "plan/cuda/project_context_kv.h"

#include <algorithm>

#include "plan/cuda/fuse_features.h"
#include "plan/cuda/workspace.h"
#include "plan/cuda/write_context_kv.h"

namespace dflash::cuda {
namespace {

// Of a block, in csrc/cuda/project_context_kv/kernel.cuh: a row group's sums and rotations, a layer's norm weights, and
// where the rows go.
constexpr int64_t kStagedBytes =
    4 * (kStreamRowGroup * (kStagedRowFloats + kStreamColumns) + kStreamColumns) + 16 * kStreamRowGroup;

// As if every column were a tile of its own.
int64_t most_partials_bytes(int64_t rows, int64_t hidden_size, int64_t columns) {
  const int64_t countable = std::min(columns, kMostCounters - 1);
  return stream_partials_bytes({1, hidden_size, countable, 1, 1}, rows);
}

bool vectors_fit(const ContextCaches& caches, const RopeTable& rope) {
  if (!whole_pieces(caches.head_dim, rope, kProjectVectorElements)) return false;
  return std::all_of(caches.layers, caches.layers + caches.layer_count, [&](const ContextCacheLayer& cache) {
    return aligned_pieces(cache.k, caches.dtype, {cache.k_page_stride, cache.k_slot_stride, cache.k_head_stride},
                          kProjectVectorElements) &&
           aligned_pieces(cache.v, caches.dtype, {cache.v_page_stride, cache.v_slot_stride, cache.v_head_stride},
                          kProjectVectorElements);
  });
}

// Sections of float32 products begin with a whole vector.
int64_t padded_section(int64_t section_columns) { return ceil_div(section_columns, 8) * 8; }

// No more than an eighth of a section of the 129 columns or more that are padded.
int64_t products_bytes(int64_t rows, int64_t columns) {
  return 4 * std::min(rows, kLibraryRows) * (columns + columns / 16);
}

// Norm, rotation and write of the rows [first_row, end) whose products, with the strides of `write`, are in the
// workspace.
LaunchPlan write_products(const ProjectContextKvParams& params, WriteContextKvParams write, int64_t first_row,
                          int64_t end, const DeviceProperties& device) {
  const GemmWeight& weight = params.gemm.weight;
  write.dtype = DType::kFloat32;
  write.head_stride = write.caches.head_dim;
  write.rows = end;
  return plan_write_products(write, {first_row, weight.bias, params.gemm.dtype, weight.bias_layer_stride}, device);
}

// All layers in one product where their weights follow one another.
std::vector<LibraryProduct> library_products(const SkinnyGemm& gemm, float* out, int64_t first_row, int64_t rows) {
  const GemmActivations& features = gemm.activations;
  const GemmWeight& weight = gemm.weight;
  const bool together = weight.layer_stride == weight.layer_columns * weight.row_stride;
  const int64_t columns = together ? weight.columns : weight.layer_columns;
  std::vector<LibraryProduct> products;
  for (int64_t column = 0; column < weight.columns; column += columns) {
    products.push_back({advanced(features.pieces[0], gemm.dtype, first_row * features.row_strides[0]),
                        advanced(weight.data, gemm.dtype, column / weight.layer_columns * weight.layer_stride),
                        out + column, rows, columns, features.piece_columns, features.row_strides[0], weight.row_stride,
                        weight.columns, gemm.dtype});
  }
  return products;
}

std::vector<OpStep> library_steps(const ProjectContextKvParams& params, const DeviceProperties& device) {
  const GemmWeight& weight = params.gemm.weight;
  float* const products = reinterpret_cast<float*>(scratch_of(params.workspace));
  WriteContextKvParams write = params.write;
  write.kv = products;
  write.row_stride = weight.columns;
  write.layer_stride = weight.layer_columns;
  write.part_stride = weight.layer_columns / 2;
  std::vector<OpStep> steps;
  const int64_t all_rows = params.gemm.activations.rows;
  for (int64_t first = 0; first < all_rows && weight.columns > 0; first += kLibraryRows) {
    const int64_t rows = std::min(all_rows - first, kLibraryRows);
    steps.push_back({library_products(params.gemm, products, first, rows),
                     write_products(params, write, first, first + rows, device)});
  }
  return steps;
}

// Heads wider than a tile.
std::vector<OpStep> streamed_steps(const ProjectContextKvParams& params, const DeviceProperties& device) {
  const GemmActivations& activations = params.gemm.activations;
  const GemmWeight& weight = params.gemm.weight;
  const int64_t section_columns = weight.layer_columns / 2, section_stride = padded_section(section_columns);
  const StreamShape shape{1, activations.piece_columns, weight.columns, section_columns, kStreamColumns};
  float* const sums =
      reinterpret_cast<float*>(scratch_of(params.workspace) + stream_partials_bytes(shape, activations.rows));
  WriteContextKvParams write = params.write;
  write.kv = sums;
  write.part_stride = section_stride;
  write.layer_stride = 2 * section_stride;
  write.row_stride = write.caches.layer_count * write.layer_stride;
  const int64_t bytes = project_context_kv_workspace_bytes(activations.rows, activations.piece_columns, weight.columns);
  return {{{},
           plan_products(params.gemm, shape, write.row_count, params.workspace, sums, write.row_stride, section_stride,
                         bytes, device)},
          {{}, write_products(params, write, 0, activations.rows, device)}};
}

LaunchPlan fused_step(const ProjectContextKvParams& params, const DeviceProperties& device) {
  const GemmActivations& activations = params.gemm.activations;
  const ContextCaches& caches = params.write.caches;
  const int64_t rows = activations.rows, columns = params.gemm.weight.columns;
  const int64_t section_columns = caches.kv_heads * caches.head_dim;
  const int64_t tile_heads = std::max<int64_t>(1, std::min(caches.kv_heads, kStreamColumns / caches.head_dim));
  const StreamShape shape{1, activations.piece_columns, columns, section_columns, tile_heads * caches.head_dim};
  ProjectContextKvLaunch launch{};
  launch.op = params;
  launch.stream = weight_stream(params.gemm, shape, kStagedBytes, params.workspace, device);
  launch.vectors = vectors_fit(caches, params.write.rope);
  launch.head = head_units(caches.head_dim, params.write.rope, launch.vectors ? kProjectVectorElements : 1);
  const char* entry =
      params.gemm.dtype == DType::kFloat16 ? "project_context_kv_float16" : "project_context_kv_bfloat16";
  return stream_launch(entry, launch, launch.stream, rows,
                       project_context_kv_workspace_bytes(rows, activations.piece_columns, columns));
}

}  // namespace

std::vector<OpStep> plan_project_context_kv(const ProjectContextKvParams& params, const DeviceProperties& device) {
  const bool fits_tile = params.write.caches.head_dim <= kStreamColumns;
  // Products of wider heads have to fit the workspace, so their number is bounded whoever knows it.
  const bool counted = fits_tile && params.write.row_count != nullptr;
  if (product_way(params.gemm.activations.rows, params.gemm.dtype, counted) == ProductWay::kLibrary) {
    return library_steps(params, device);
  }
  if (!fits_tile) return streamed_steps(params, device);
  return {{{}, fused_step(params, device)}};
}

int64_t project_context_kv_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t columns) {
  return kCounterBytes + most_partials_bytes(rows, hidden_size, columns) + products_bytes(rows, columns);
}

}  // namespace dflash::cuda
