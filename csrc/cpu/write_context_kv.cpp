#include "cpu/write_context_kv.h"

#include "cpu/norm_rope.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace dflash::cpu {
namespace {

// Starting a thread costs about as much as writing this many elements.
constexpr int64_t kElementsPerTask = 32768;

const char* at(const void* data, DType dtype, int64_t element) {
  return static_cast<const char*>(data) + element * dtype_size(dtype);
}
char* at(void* data, DType dtype, int64_t element) { return static_cast<char*>(data) + element * dtype_size(dtype); }

void write_rows(const WriteContextKvParams& params, int64_t begin, int64_t end) {
  const auto process = DFLASH_KERNEL(norm_rope_heads);
  const auto convert = DFLASH_KERNEL(convert_to_floats);
  const auto expand = DFLASH_KERNEL(expand_rotation);
  const ContextCaches& caches = params.caches;
  const RopeTable& rope = params.rope;
  const int64_t head_floats = padded_floats(caches.head_dim);

  auto* head = static_cast<float*>(
      thread_scratch(sizeof(float) * ((caches.layer_count + 1) * head_floats + rotation_floats(rope.rotary_dim))));
  float* rotation = head + head_floats;
  float* weights = rotation + rotation_floats(rope.rotary_dim);
  for (int64_t layer = 0; params.k_norm_weight != nullptr && layer < caches.layer_count; ++layer) {
    convert(at(params.k_norm_weight, params.weight_dtype, layer * params.k_norm_layer_stride), params.weight_dtype,
            caches.head_dim, weights + layer * head_floats);
  }

  for (int64_t row = begin; row < end; ++row) {
    const int64_t slot = caches.slot_mapping[row * caches.slot_mapping_stride];
    if (slot < 0) continue;
    const int64_t page = slot / caches.page_size, offset = slot % caches.page_size;
    if (rope.cos_sin != nullptr) {
      const int64_t position = rope.positions[row * rope.positions_stride];
      expand(at(rope.cos_sin, rope.dtype, position * rope.row_stride), rope.dtype, rope.rotary_dim, rope.interleaved,
             rotation);
    }
    for (int64_t layer = 0; layer < caches.layer_count; ++layer) {
      const ContextCacheLayer& cache = caches.layers[layer];
      NormRopeHeads heads{};
      heads.in_dtype = params.dtype;
      heads.in_head_stride = params.head_stride;
      heads.out_dtype = caches.dtype;
      heads.heads = caches.kv_heads;
      heads.head_dim = caches.head_dim;

      const int64_t source = row * params.row_stride + layer * params.layer_stride;
      heads.in = at(params.kv, params.dtype, source + params.part_stride);
      heads.out = at(cache.v, caches.dtype, page * cache.v_page_stride + offset * cache.v_slot_stride);
      heads.out_head_stride = cache.v_head_stride;
      process(heads, head);

      heads.in = at(params.kv, params.dtype, source);
      heads.out = at(cache.k, caches.dtype, page * cache.k_page_stride + offset * cache.k_slot_stride);
      heads.out_head_stride = cache.k_head_stride;
      heads.weight = params.k_norm_weight != nullptr ? weights + layer * head_floats : nullptr;
      heads.rotation = rope.cos_sin != nullptr ? rotation : nullptr;
      heads.rotary_dim = rope.rotary_dim;
      heads.interleaved = rope.interleaved;
      heads.eps = params.eps;
      process(heads, head);
    }
  }
}

}  // namespace

void write_context_kv(const WriteContextKvParams& params) {
  const int64_t rows = params.row_count != nullptr ? *params.row_count : params.rows;
  const ContextCaches& caches = params.caches;
  const int64_t row_elements = 2 * caches.layer_count * caches.kv_heads * caches.head_dim;
  if (rows == 0 || row_elements == 0) return;
  parallel_ranges(rows, kElementsPerTask / row_elements + 1,
                  [&](int64_t begin, int64_t end) { write_rows(params, begin, end); });
}

}  // namespace dflash::cpu
