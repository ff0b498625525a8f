#include "plan/cuda/project_context_kv.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "plan/cuda/workspace.h"

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

}  // namespace

LaunchPlan plan_project_context_kv(const ProjectContextKvParams& params, const DeviceProperties& device) {
  const GemmActivations& activations = params.gemm.activations;
  const ContextCaches& caches = params.write.caches;
  const int64_t rows = activations.rows, columns = params.gemm.weight.columns;
  const int64_t section_columns = caches.kv_heads * caches.head_dim;
  if (caches.head_dim < 1 || caches.head_dim > kStreamColumns) {
    throw std::invalid_argument("head_dim: expected 1 to " + std::to_string(kStreamColumns) + ", got " +
                                std::to_string(caches.head_dim));
  }
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

int64_t project_context_kv_workspace_bytes(int64_t rows, int64_t hidden_size, int64_t columns) {
  return kCounterBytes + most_partials_bytes(rows, hidden_size, columns);
}

}  // namespace dflash::cuda
