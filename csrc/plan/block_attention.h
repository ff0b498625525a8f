// How block_attention cuts its work into tasks, and the workspace that takes.
//
// A row is one (block position, head of the group) pair, so the GQA group and the block share one sweep over K and V.
// An item is a stretch of rows of one request, for one or several kv heads, together with all keys those rows see. Its
// keys may be split over several tasks, whose partial results the last of them combines.
#pragma once
#include <cstdint>

#include "params/block_attention.h"

namespace dflash::plan {

// Rows of an item, all heads together. A block of 16 with a group of 16 fits: K and V are swept once. Longer blocks
// (verification of long drafts, prefill) are cut into several items.
constexpr int64_t kBlockAttentionRows = 256;
// Keys of a tile: a multiple of every register block's height (4, 6, 8, 12), and 2 x 96 keys of 128 channels in float32
// fit half of a 256 KiB cache.
constexpr int64_t kBlockAttentionTile = 96;

struct BlockAttentionShape {
  int64_t batch, tokens, q_heads, kv_heads, head_dim;
  int64_t max_context;  // max_pages * page_size
  int64_t num_splits;   // 0: planned
  int64_t threads;
};

BlockAttentionShape block_attention_shape(const BlockAttentionParams& params, int64_t threads);

struct BlockAttentionItem {
  int64_t request, kv_head, heads;              // kv heads kv_head .. kv_head + heads - 1
  const int32_t* pages;                         // of the context
  int64_t first_token, context_len, block_len;  // of the request; only what the heads see of the context counts
  int64_t first_row, rows;                      // of each head; row = block position * group + head within the group
  int64_t key_begin, key_end;                   // positions; the context comes first, then the block
  int64_t splits, tiles_per_split;
  int64_t first_task;       // tasks of all earlier items
  int64_t partial_row;      // where the partial results begin when splits > 1: [splits][heads][rows]
  int64_t finished_splits;  // counted while running
};

// Positions the row of block position `index` sees: [begin, end).
struct KeyRange {
  int64_t begin, end;
};
KeyRange visible_keys(const BlockAttentionParams& params, int64_t context_len, int64_t block_len, int64_t index);

// Where the parts of the workspace lie.
struct BlockAttentionWorkspace {
  int64_t max_items;     // BlockAttentionItem[max_items] at offset 0
  int64_t partial_rows;  // float[partial_rows][head_dim] at partials_offset, then maximum and sum of each row
  int64_t partials_offset, statistics_offset;
  int64_t bytes;
};
BlockAttentionWorkspace block_attention_workspace(const BlockAttentionShape& shape);

// Fills `items` (of max_items) and returns their number; the number of tasks goes to `tasks`. With num_splits > 0 the
// cuts of a request depend on its own lengths alone, so its result does not depend on the rest of the batch.
int64_t plan_block_attention(const BlockAttentionParams& params, int64_t threads, BlockAttentionItem* items,
                             int64_t* tasks);

}  // namespace dflash::plan
