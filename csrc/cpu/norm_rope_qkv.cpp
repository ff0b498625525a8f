#include "cpu/norm_rope_qkv.h"

#include "cpu/norm_rope.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace dflash::cpu {
namespace {

// Starting a thread costs about as much as processing this many elements.
constexpr int64_t kElementsPerTask = 32768;

void process_rows(const NormRopeQkvParams& params, int64_t begin, int64_t end) {
  const auto process = DFLASH_KERNEL(norm_rope_heads);
  const auto convert = DFLASH_KERNEL(convert_to_floats);
  const auto expand = DFLASH_KERNEL(expand_rotation);
  const RopeTable& rope = params.rope;
  const int64_t size = dtype_size(params.dtype);
  const int64_t head_floats = padded_floats(params.head_dim);

  auto* head =
      static_cast<float*>(thread_scratch(sizeof(float) * (3 * head_floats + rotation_floats(rope.rotary_dim))));
  float* q_weight = head + head_floats;
  float* k_weight = q_weight + head_floats;
  float* rotation = k_weight + head_floats;
  if (params.q_norm_weight != nullptr) convert(params.q_norm_weight, params.dtype, params.head_dim, q_weight);
  if (params.k_norm_weight != nullptr) convert(params.k_norm_weight, params.dtype, params.head_dim, k_weight);

  for (int64_t row = begin; row < end; ++row) {
    const bool rotated = rope.cos_sin != nullptr;
    if (rotated) {
      const int64_t position = rope.positions[row * rope.positions_stride];
      const auto* table = static_cast<const char*>(rope.cos_sin);
      expand(table + position * rope.row_stride * dtype_size(rope.dtype), rope.dtype, rope.rotary_dim, rope.interleaved,
             rotation);
    }
    NormRopeHeads heads{};
    heads.in_dtype = heads.out_dtype = params.dtype;
    heads.in_head_stride = heads.head_dim = params.head_dim;
    heads.rotary_dim = rope.rotary_dim;
    heads.interleaved = rope.interleaved;
    heads.eps = params.eps;

    const char* in = static_cast<const char*>(params.qkv) + row * params.qkv_row_stride * size;
    heads.in = in;
    heads.out = static_cast<char*>(params.q) + row * params.q_row_stride * size;
    heads.out_head_stride = params.q_head_stride;
    heads.heads = params.q_heads;
    heads.weight = params.q_norm_weight != nullptr ? q_weight : nullptr;
    heads.rotation = rotated ? rotation : nullptr;
    process(heads, head);

    heads.in = in + params.q_heads * params.head_dim * size;
    heads.out = static_cast<char*>(params.k) + row * params.k_row_stride * size;
    heads.out_head_stride = params.k_head_stride;
    heads.heads = params.kv_heads;
    heads.weight = params.k_norm_weight != nullptr ? k_weight : nullptr;
    process(heads, head);

    heads.in = in + (params.q_heads + params.kv_heads) * params.head_dim * size;
    heads.out = static_cast<char*>(params.v) + row * params.v_row_stride * size;
    heads.out_head_stride = params.v_head_stride;
    heads.weight = nullptr;
    heads.rotation = nullptr;
    process(heads, head);
  }
}

}  // namespace

void norm_rope_qkv(const NormRopeQkvParams& params) {
  const int64_t row_elements = (params.q_heads + 2 * params.kv_heads) * params.head_dim;
  if (params.rows == 0 || row_elements == 0) return;
  parallel_ranges(params.rows, kElementsPerTask / row_elements + 1,
                  [&](int64_t begin, int64_t end) { process_rows(params, begin, end); });
}

}  // namespace dflash::cpu
