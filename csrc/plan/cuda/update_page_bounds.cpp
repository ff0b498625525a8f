#include "plan/cuda/update_page_bounds.h"

#include <algorithm>

#include "plan/cuda/head_units.h"

namespace dflash::cuda {
namespace {

// Blocks that compute bounds, a multiprocessor, before a block takes more than one layer: it has looked through the
// whole of slot_mapping then.
constexpr int64_t kPagesPerMultiprocessor = 4;

bool vectors_fit(const UpdatePageBoundsParams& params, int64_t elements) {
  const auto fits = [&](const PageBoundsLayer& layer) {
    return aligned_pieces(layer.k, params.dtype, {layer.k_page_stride, layer.k_slot_stride, layer.k_head_stride},
                          elements) &&
           aligned_pieces(layer.bounds, params.dtype,
                          {layer.bounds_page_stride, layer.bounds_head_stride, layer.bounds_part_stride}, elements);
  };
  return params.head_dim % elements == 0 && std::all_of(params.layers, params.layers + params.layer_count, fits);
}

}  // namespace

LaunchPlan plan_update_page_bounds(const UpdatePageBoundsParams& params, const DeviceProperties& device) {
  constexpr const char* kEntries[3] = {"update_page_bounds_float32", "update_page_bounds_float16",
                                       "update_page_bounds_bfloat16"};
  const int64_t elements = vector_elements(params.dtype, params.dtype);
  const bool vectors = vectors_fit(params, elements);
  const char* entry = vectors ? kEntries[static_cast<int>(params.dtype)] : "update_page_bounds_unaligned";
  UpdatePageBoundsLaunch launch{params, static_cast<uint32_t>(vectors ? params.head_dim / elements : params.head_dim),
                                1};
  if (params.rows == 0 || params.layer_count * params.kv_heads * params.head_dim == 0) {
    return make_launch(entry, {0}, {kBoundsThreads}, 0, launch, 0);
  }
  const int64_t page_layers = ceil_div(params.rows, params.page_size) * params.layer_count;
  const int64_t block_layers =
      std::clamp<int64_t>(page_layers / (kPagesPerMultiprocessor * device.multiprocessors), 1, params.layer_count);
  launch.block_layers = static_cast<uint32_t>(block_layers);
  LaunchPlan plan =
      make_launch(entry, {params.rows, ceil_div(params.layer_count, block_layers)}, {kBoundsThreads}, 0, launch, 0);
  plan.overlaps = true;
  return plan;
}

}  // namespace dflash::cuda
