#pragma once
#include "params/rope_table.h"

namespace dflash {

// Sized so that the params struct stays plain; drafters have 5 to 8 layers.
constexpr int64_t kMaxContextLayers = 128;

struct ContextCacheLayer {
  void* k;  // [pages, page_size, kv_heads, head_dim], head_dim contiguous; strides in elements
  int64_t k_page_stride, k_slot_stride, k_head_stride;
  void* v;
  int64_t v_page_stride, v_slot_stride, v_head_stride;
};

// Where context rows go. All layers have one shape and one dtype, and strides of their own.
struct ContextCaches {
  ContextCacheLayer layers[kMaxContextLayers];
  DType dtype;
  int64_t layer_count, pages, page_size, kv_heads, head_dim;
  const int64_t* slot_mapping;  // [rows], page * page_size + offset, -1: skip the row
  int64_t slot_mapping_stride;
};

struct WriteContextKvParams {
  const void* kv;  // [rows, layers, 2, kv_heads, head_dim], head_dim contiguous
  DType dtype;
  int64_t row_stride, layer_stride, part_stride, head_stride;  // elements
  int64_t rows;
  const int32_t* row_count;   // one element, or null: all rows
  const void* k_norm_weight;  // [layers, head_dim] or null: no norm
  DType weight_dtype;
  int64_t k_norm_layer_stride;
  RopeTable rope;
  ContextCaches caches;
  float eps;
};

}  // namespace dflash
