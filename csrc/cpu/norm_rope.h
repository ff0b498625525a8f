// RMS norm over each head and rotation, the part that write_context_kv, project_context_kv, norm_rope_qkv and
// fuse_features share. Everything between load and store is float32.
#pragma once
#include "cpu/isa.h"
#include "params/rope_table.h"

namespace dflash::cpu {

// Float arrays handed to the kernels below are padded to this many elements, so that every vector load is whole.
constexpr int64_t kFloatPadding = 16;
constexpr int64_t padded_floats(int64_t count) { return (count + kFloatPadding - 1) / kFloatPadding * kFloatPadding; }

// Heads of one token: out = rotate(norm(in) * weight).
struct NormRopeHeads {
  const void* in;
  DType in_dtype;
  int64_t in_head_stride;  // elements
  void* out;
  DType out_dtype;
  int64_t out_head_stride;
  int64_t heads, head_dim;
  const float* weight;    // [padded_floats(head_dim)], zeros past head_dim; null: no norm
  const float* rotation;  // from expand_rotation; null: no rotation
  int64_t rotary_dim;
  bool interleaved;
  float eps;
};

// Floats that the expanded rotation of one token takes.
constexpr int64_t rotation_floats(int64_t rotary_dim) { return 2 * padded_floats(rotary_dim); }

}  // namespace dflash::cpu

// `scratch` holds padded_floats(head_dim) floats. Where neither norm nor rotation is asked for and the dtypes agree,
// the bits are copied.
DFLASH_DECLARE_KERNEL(void, norm_rope_heads, (const cpu::NormRopeHeads& heads, float* scratch))
// Converts `count` elements; zeros up to padded_floats(count).
DFLASH_DECLARE_KERNEL(void, convert_to_floats, (const void* in, DType dtype, int64_t count, float* out))
// One row of the table, brought into the form that norm_rope_heads reads: cosines, then sines; for interleaved pairs
// one of each per channel, the sine with the sign it takes there.
DFLASH_DECLARE_KERNEL(void, expand_rotation,
                      (const void* cos_sin, DType dtype, int64_t rotary_dim, bool interleaved, float* out))
