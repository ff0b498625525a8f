// Where the parts of a block_attention task's scratch memory lie. Sizes are for the widest vectors of any instruction
// set, so that driver and kernels agree.
#pragma once
#include <cstdint>

#include "plan/block_attention.h"

namespace dflash::cpu {

constexpr int64_t kBlockAttentionMaxLanes = 16;
constexpr int64_t kBlockAttentionMaxPanel = 3 * kBlockAttentionMaxLanes;

struct BlockAttentionScratch {
  // Offsets in bytes.
  int64_t queries;      // [head_dim][rows of a panel], panel after panel; at the end results as [rows][head_dim]
  int64_t outputs;      // [head_dim][rows of a panel], panel after panel
  int64_t scores;       // [kBlockAttentionTile][rows of a panel]
  int64_t keys;         // [kBlockAttentionTile][row_stride]
  int64_t values;       // [kBlockAttentionTile][row_stride]
  int64_t maxima;       // [rows]
  int64_t sums;         // [rows]
  int64_t range_begin;  // [rows], int32: first visible key, relative to the item's
  int64_t range_end;    // [rows], int32
  int64_t row_stride;   // 4-byte elements of a packed key or value
  int64_t bytes;
};

constexpr BlockAttentionScratch block_attention_scratch_layout(int64_t head_dim) {
  constexpr int64_t rows = plan::kBlockAttentionRows + kBlockAttentionMaxPanel;
  constexpr int64_t tile = plan::kBlockAttentionTile;
  BlockAttentionScratch scratch{};
  // A cache line more than head_dim: the same channel of successive keys must not fall into few cache sets.
  scratch.row_stride = (head_dim + 15) / 16 * 16 + 16;
  scratch.queries = 0;
  scratch.outputs = scratch.queries + rows * head_dim * 4;
  scratch.scores = scratch.outputs + rows * head_dim * 4;
  scratch.keys = scratch.scores + tile * kBlockAttentionMaxPanel * 4;
  scratch.values = scratch.keys + tile * scratch.row_stride * 4;
  scratch.maxima = scratch.values + tile * scratch.row_stride * 4;
  scratch.sums = scratch.maxima + rows * 4;
  scratch.range_begin = scratch.sums + rows * 4;
  scratch.range_end = scratch.range_begin + rows * 4;
  scratch.bytes = scratch.range_end + rows * 4;
  return scratch;
}
static_assert(plan::kBlockAttentionRows % 16 == 0 && kBlockAttentionMaxPanel % 16 == 0, "parts start on cache lines");

}  // namespace dflash::cpu
