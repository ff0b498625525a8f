// Where the parts of a score_pages task's scratch memory lie, for the widest vectors of any instruction set.
#pragma once
#include <cstdint>

#include "cpu/block_attention_scratch.h"

namespace dflash::cpu {

struct PageScoreScratch {
  // Offsets in bytes.
  int64_t queries;     // [2 * head_dim][rows of a panel], panel after panel
  int64_t bounds;      // [kBlockAttentionTile][row_stride]: a page's minima, then its maxima
  int64_t scores;      // [kBlockAttentionTile][rows of a panel]
  int64_t row_stride;  // 4-byte elements
  int64_t bytes;
};

constexpr PageScoreScratch page_score_scratch_layout(int64_t head_dim) {
  constexpr int64_t rows = plan::kBlockAttentionRows + kBlockAttentionMaxPanel;
  constexpr int64_t tile = plan::kBlockAttentionTile;
  PageScoreScratch scratch{};
  // A cache line more than needed: the same channel of successive pages must not fall into few cache sets.
  scratch.row_stride = (2 * head_dim + 15) / 16 * 16 + 16;
  scratch.bounds = scratch.queries + rows * 2 * head_dim * 4;
  scratch.scores = scratch.bounds + tile * scratch.row_stride * 4;
  scratch.bytes = scratch.scores + tile * kBlockAttentionMaxPanel * 4;
  return scratch;
}

}  // namespace dflash::cpu
