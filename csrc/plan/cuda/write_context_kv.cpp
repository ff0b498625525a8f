#include "plan/cuda/write_context_kv.h"

namespace dflash::cuda {
namespace {

// Shared memory of a block's rotations and weights: little enough for two blocks on every multiprocessor.
constexpr int64_t kRotationBytes = 16 * 1024, kWeightBytes = 24 * 1024;
// Every block reads its layers' norm weights again; so many rows keep that below 1/64 of what the rows themselves take.
constexpr int64_t kLeastShareOfRows = 64;
// Beyond it, rows spread over this many blocks of keys for each multiprocessor, and of values as many.
constexpr int64_t kBlocksPerMultiprocessor = 2;

bool vectors_fit(const WriteContextKvParams& params, int64_t elements) {
  const ContextCaches& caches = params.caches;
  if (!whole_pieces(caches.head_dim, params.rope, elements) ||
      !aligned_pieces(params.kv, params.dtype,
                      {params.row_stride, params.layer_stride, params.part_stride, params.head_stride}, elements)) {
    return false;
  }
  for (int64_t layer = 0; layer < caches.layer_count; ++layer) {
    const ContextCacheLayer& cache = caches.layers[layer];
    if (!aligned_pieces(cache.k, caches.dtype, {cache.k_page_stride, cache.k_slot_stride, cache.k_head_stride},
                        elements) ||
        !aligned_pieces(cache.v, caches.dtype, {cache.v_page_stride, cache.v_slot_stride, cache.v_head_stride},
                        elements)) {
      return false;
    }
  }
  return true;
}

int64_t rows_of_block(const WriteContextKvParams& params, int64_t rows, int64_t rotary_dim, int64_t block_layers,
                      const DeviceProperties& device) {
  const ContextCaches& caches = params.caches;
  const int64_t head_bytes = caches.head_dim * (dtype_size(params.dtype) + dtype_size(caches.dtype));
  const int64_t row_bytes = 2 * block_layers * caches.kv_heads * head_bytes;
  const int64_t weight_bytes =
      params.k_norm_weight == nullptr ? 0 : block_layers * caches.head_dim * dtype_size(params.weight_dtype);
  const int64_t spread = ceil_div(rows, kBlocksPerMultiprocessor * device.multiprocessors);
  const int64_t wanted = std::max<int64_t>(spread, ceil_div(kLeastShareOfRows * weight_bytes, row_bytes));
  const int64_t fitting = rotary_dim == 0 ? kMostContextRows : kRotationBytes / (4 * rotary_dim);
  return std::max<int64_t>(1, std::min({wanted, fitting, int64_t{kMostContextRows}, rows}));
}

LaunchPlan plan_write(const char* entry, const WriteContextKvParams& params, const WriteProducts& products,
                      int64_t elements, const DeviceProperties& device) {
  const ContextCaches& caches = params.caches;
  WriteContextKvLaunch launch{params, products, head_units(caches.head_dim, params.rope, elements), 0, 0};
  const int64_t rows = params.rows - products.first_row;
  LaunchPlan plan = make_launch(entry, {0}, {kContextThreads}, 0, launch, 0);
  if (rows > 0 && caches.layer_count * caches.kv_heads > 0) {
    const bool normed = params.k_norm_weight != nullptr;
    const int64_t layers_fit = normed ? std::max<int64_t>(1, kWeightBytes / (4 * caches.head_dim)) : caches.layer_count;
    const int64_t block_layers = std::min(caches.layer_count, layers_fit);
    const int64_t block_rows = rows_of_block(params, rows, launch.head.rotary_dim, block_layers, device);
    launch.block_rows = static_cast<uint32_t>(block_rows);
    launch.block_layers = static_cast<uint32_t>(block_layers);
    const int64_t shared_floats = block_rows * launch.head.rotary_dim + (normed ? block_layers * caches.head_dim : 0);
    plan = make_launch(entry, {ceil_div(rows, block_rows), 2, ceil_div(caches.layer_count, block_layers)},
                       {kContextThreads}, 4 * shared_floats, launch, 0);
  }
  plan.overlaps = true;
  return plan;
}

}  // namespace

LaunchPlan plan_write_context_kv(const WriteContextKvParams& params, const DeviceProperties& device) {
  constexpr const char* kEntries[3][3] = {
      {"write_context_kv_float32_float32", "write_context_kv_float32_float16", "write_context_kv_float32_bfloat16"},
      {"write_context_kv_float16_float32", "write_context_kv_float16_float16", "write_context_kv_float16_bfloat16"},
      {"write_context_kv_bfloat16_float32", "write_context_kv_bfloat16_float16", "write_context_kv_bfloat16_bfloat16"}};
  const int64_t elements = vector_elements(params.dtype, params.caches.dtype);
  const bool vectors = vectors_fit(params, elements);
  const char* entry = vectors ? kEntries[static_cast<int>(params.dtype)][static_cast<int>(params.caches.dtype)]
                              : "write_context_kv_unaligned";
  return plan_write(entry, params, {}, vectors ? elements : 1, device);
}

LaunchPlan plan_write_products(const WriteContextKvParams& params, const WriteProducts& products,
                               const DeviceProperties& device) {
  constexpr int64_t kElements = vector_elements(DType::kFloat32, DType::kFloat32);
  const bool vectors = vectors_fit(params, kElements);
  return plan_write(vectors ? "write_products" : "write_products_unaligned", params, products, vectors ? kElements : 1,
                    device);
}

}  // namespace dflash::cuda
