#pragma once
#include "params/dtype.h"

namespace dflash {

// All strides count elements; the head_dim of every tensor is contiguous.
struct BlockAttentionParams {
  const void* q;  // [tokens, q_heads, head_dim]
  int64_t q_token_stride, q_head_stride;
  const void* k_block;  // [tokens, kv_heads, head_dim]
  int64_t k_block_token_stride, k_block_head_stride;
  const void* v_block;
  int64_t v_block_token_stride, v_block_head_stride;
  const void* k_cache;  // [pages, page_size, kv_heads, head_dim]
  int64_t k_page_stride, k_slot_stride, k_head_stride;
  const void* v_cache;
  int64_t v_page_stride, v_slot_stride, v_head_stride;
  const int32_t* page_table;  // [batch, max_pages]
  int64_t page_table_stride;
  const int32_t* context_lens;  // [batch]
  int64_t context_lens_stride;
  // Null: every head sees the whole context. Else the pages of the cache that a kv head sees of it, in the order of
  // their positions, [batch, kv_heads, max_pages], and how many rows they hold, [batch, kv_heads]. Then no window.
  const int32_t* head_pages;
  const int32_t* head_context_lens;
  const int32_t* cu_block_lens;  // [batch + 1], or null: tokens / batch rows each
  int64_t cu_block_lens_stride;
  const float* sinks;  // [q_heads] or null
  int64_t sinks_stride;
  void* out;  // [tokens, q_heads, head_dim]
  int64_t out_token_stride, out_head_stride;
  float* lse;  // [tokens, q_heads] or null
  int64_t lse_token_stride, lse_head_stride;
  void* workspace;

  DType dtype;
  int64_t batch, tokens, q_heads, kv_heads, head_dim, page_size, max_pages;
  float scale;
  bool causal;
  int64_t window;  // 0: none
  float softcap;   // 0: none
  int64_t num_splits;
};

}  // namespace dflash
