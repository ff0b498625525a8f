#pragma once
#include "params/rope_table.h"

namespace dflash {

// All strides count elements; head_dim is contiguous everywhere.
struct NormRopeQkvParams {
  const void* qkv;  // [rows, (q_heads + 2 * kv_heads) * head_dim]
  int64_t qkv_row_stride;
  DType dtype;
  int64_t rows, q_heads, kv_heads, head_dim;
  const void* q_norm_weight;  // [head_dim] or null: no norm
  const void* k_norm_weight;
  RopeTable rope;
  float eps;
  void* q;  // [rows, q_heads, head_dim]
  int64_t q_row_stride, q_head_stride;
  void* k;  // [rows, kv_heads, head_dim]
  int64_t k_row_stride, k_head_stride;
  void* v;
  int64_t v_row_stride, v_head_stride;
};

}  // namespace dflash
