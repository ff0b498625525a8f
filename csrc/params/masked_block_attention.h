// Arguments of masked_block_attention and the one definition of its masks: document_at and visible_keys below, for the
// CPU and for GPUs.
#pragma once
#include "params/dtype.h"
#include "params/host_device.h"

namespace dflash {

enum class MaskMode : int8_t { kAnchor, kBlockCausal, kBidirectional, kCausal };

// [rows, heads, head_dim] with contiguous head_dim; strides count elements.
struct HeadRows {
  void* data;
  int64_t row_stride, head_stride;
};

struct MaskedBlockAttentionParams {
  HeadRows q, k, v;        // [queries, q_heads, D], [keys, kv_heads, D] twice
  HeadRows out;            // as q; read by the backward pass
  HeadRows lse;            // [queries, q_heads] float32; read by the backward pass
  HeadRows grad_out;       // as q; these four by the backward pass only
  HeadRows grad_q;         // as q
  HeadRows grad_k;         // as k
  HeadRows grad_v;         // as v
  const int32_t* anchors;  // [queries / block_size], anchor mode only
  int64_t anchors_stride;
  const int32_t* cu_seqlens;  // [documents + 1], or null: one document
  int64_t cu_seqlens_stride, documents;

  DType dtype;
  MaskMode mode;
  int64_t queries, keys, q_heads, kv_heads, head_dim, block_size;
  bool causal;     // anchor mode: inside the block
  int64_t window;  // 0: none
  float scale;
};

// Keys a query sees: two intervals of key indices (either may be empty).
struct VisibleKeys {
  int64_t context_begin, context_end;
  int64_t block_begin, block_end;  // the query's own block in anchor mode; elsewhere empty
};

// Tokens in front of the blocks (anchor mode), or all of them: what documents and anchors refer to.
DFLASH_HOST_DEVICE static inline int64_t context_tokens(const MaskedBlockAttentionParams& params) {
  return params.mode == MaskMode::kAnchor ? params.keys - params.queries : params.keys;
}

struct Document {
  int64_t begin, end;
};

// The last document that starts at or before `position`, a token or an anchor; an empty one where there is none. Behind
// the last document's end, an anchor still belongs to it and a token to none. Bounds that no one could check lead to no
// token that is not there.
DFLASH_HOST_DEVICE static inline Document document_at(const MaskedBlockAttentionParams& params, int64_t position) {
  const int64_t tokens = context_tokens(params);
  if (params.cu_seqlens == nullptr) return {0, tokens};
  const auto bound = [&](int64_t i) {
    const int64_t value = params.cu_seqlens[i * params.cu_seqlens_stride];
    return value < 0 ? 0 : value > tokens ? tokens : value;
  };
  int64_t low = 0, high = params.mode == MaskMode::kAnchor ? params.documents - 1 : params.documents;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (bound(middle) <= position) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (high < 0) return {0, 0};
  return {bound(low), bound(low < params.documents ? low + 1 : low)};
}

// What query `token` sees, given the document it belongs to, [document_begin, document_end). The document of an anchor
// block is the last one that starts at or before its anchor. Static, so that every instruction set has its own copy.
DFLASH_HOST_DEVICE static inline VisibleKeys visible_keys(const MaskedBlockAttentionParams& params,
                                                          int64_t document_begin, int64_t document_end, int64_t token) {
  VisibleKeys keys{0, 0, 0, 0};
  const int64_t window = params.window, block_size = params.block_size;
  int64_t position = token;
  if (params.mode == MaskMode::kAnchor) {
    const int64_t block = token / block_size, row = token % block_size;
    const int64_t anchor = params.anchors[block * params.anchors_stride];
    if (anchor < 0) return keys;  // padding
    position = anchor + row;
    keys.context_end = anchor;
    int64_t begin = 0, end = params.causal ? row + 1 : block_size;
    if (window > 0) {
      begin = row - window + 1 > 0 ? row - window + 1 : 0;
      end = row + window < end ? row + window : end;
    }
    const int64_t first = context_tokens(params) + block * block_size;
    keys.block_begin = first + begin;
    keys.block_end = first + end;
  } else if (params.mode == MaskMode::kCausal) {
    keys.context_end = token + 1;
  } else if (params.mode == MaskMode::kBlockCausal) {
    keys.context_end = document_begin + ((token - document_begin) / block_size + 1) * block_size;
  } else {
    keys.context_end = document_end;
  }
  keys.context_begin = document_begin;
  if (window > 0) {
    if (position - window + 1 > keys.context_begin) keys.context_begin = position - window + 1;
    if (position + window < keys.context_end) keys.context_end = position + window;
  }
  if (keys.context_end > document_end) keys.context_end = document_end;
  if (keys.context_end <= keys.context_begin) keys.context_begin = keys.context_end = 0;
  return keys;
}

}  // namespace dflash
