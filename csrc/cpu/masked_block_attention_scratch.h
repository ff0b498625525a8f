// Where the parts of a masked_block_attention task's scratch memory lie. Sizes are for the widest vectors of any
// instruction set, so that driver and kernels agree.
#pragma once
#include <cstdint>

#include "plan/masked_block_attention_tile.h"

namespace dflash::cpu {

constexpr int64_t kMaskedBlockAttentionMaxLanes = 16;
constexpr int64_t kMaskedBlockAttentionMaxPanel = 3 * kMaskedBlockAttentionMaxLanes;
// Keys packed at a time.
constexpr int64_t kMaskedBlockAttentionKeys = 96;
// Register blocks take up to 12 keys at once and may run past a tile's last: what they find there is not used.
constexpr int64_t kMaskedBlockAttentionKeySlack = 12;

// head_dim with the padding that rows of whole vectors need.
static constexpr int64_t masked_block_attention_padded_dim(int64_t head_dim) {
  return (head_dim + kMaskedBlockAttentionMaxLanes - 1) / kMaskedBlockAttentionMaxLanes * kMaskedBlockAttentionMaxLanes;
}

struct MaskedBlockAttentionScratch {
  // Offsets in bytes. "Transposed" is [padded_dim][rows of a panel], panel after panel; "rows" is [rows][padded_dim].
  int64_t ranges;   // int32 [2 segments][begin, end][rows]
  int64_t places;   // int32 [query, head][rows]
  int64_t maxima;   // [rows]; the backward pass keeps lse here
  int64_t sums;     // [rows]; the backward pass keeps delta here
  int64_t keys;     // [keys + slack][key_stride]
  int64_t values;   // [keys + slack][key_stride]
  int64_t scores;   // [keys + slack][rows of a panel]
  int64_t queries;  // transposed
  int64_t results;  // transposed: outputs, or gradients of queries
  int64_t forward_bytes;
  // Of the backward pass only:
  int64_t score_grads;    // as scores
  int64_t out_grads;      // transposed
  int64_t query_rows;     // rows
  int64_t out_grad_rows;  // rows
  int64_t backward_bytes;
  int64_t key_stride;  // floats
};

static constexpr MaskedBlockAttentionScratch masked_block_attention_scratch_layout(int64_t head_dim) {
  constexpr int64_t rows = plan::kMaskedBlockAttentionRows + kMaskedBlockAttentionMaxPanel;
  constexpr int64_t keys = kMaskedBlockAttentionKeys + kMaskedBlockAttentionKeySlack;
  const int64_t padded_dim = masked_block_attention_padded_dim(head_dim);
  MaskedBlockAttentionScratch scratch{};
  // A cache line more than head_dim: the same channel of successive keys must not fall into few cache sets.
  scratch.key_stride = padded_dim + 16;
  scratch.ranges = 0;
  scratch.places = scratch.ranges + 4 * rows * 4;
  scratch.maxima = scratch.places + 2 * rows * 4;
  scratch.sums = scratch.maxima + rows * 4;
  scratch.keys = scratch.sums + rows * 4;
  scratch.values = scratch.keys + keys * scratch.key_stride * 4;
  scratch.scores = scratch.values + keys * scratch.key_stride * 4;
  scratch.queries = scratch.scores + keys * kMaskedBlockAttentionMaxPanel * 4;
  scratch.results = scratch.queries + rows * padded_dim * 4;
  scratch.forward_bytes = scratch.results + rows * padded_dim * 4;
  scratch.score_grads = scratch.forward_bytes;
  scratch.out_grads = scratch.score_grads + keys * kMaskedBlockAttentionMaxPanel * 4;
  scratch.query_rows = scratch.out_grads + rows * padded_dim * 4;
  scratch.out_grad_rows = scratch.query_rows + rows * padded_dim * 4;
  scratch.backward_bytes = scratch.out_grad_rows + rows * padded_dim * 4;
  return scratch;
}
static_assert((plan::kMaskedBlockAttentionRows + kMaskedBlockAttentionMaxPanel) % 16 == 0 &&
                  (kMaskedBlockAttentionKeys + kMaskedBlockAttentionKeySlack) * kMaskedBlockAttentionMaxPanel % 16 == 0,
              "parts start on cache lines");

}  // namespace dflash::cpu
