#include "plan/block_attention.h"

#include <algorithm>

namespace dflash::plan {
namespace {

// Tasks a thread should get, so that uneven ones even out. They are handed out one by one.
constexpr int64_t kTasksPerThread = 4;
// A split shorter than this costs more in packing queries and combining than it gains.
constexpr int64_t kMinTilesPerSplit = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

int64_t tiles_of(const BlockAttentionItem& item) {
  return ceil_div(item.key_end - item.key_begin, kBlockAttentionTile);
}

}  // namespace

KeyRange visible_keys(const BlockAttentionParams& params, int64_t context_len, int64_t block_len, int64_t index) {
  const int64_t position = context_len + index;
  KeyRange range{0, context_len + block_len};
  if (params.window > 0) range.begin = std::max<int64_t>(0, position - params.window + 1);
  if (params.causal) {
    range.end = position + 1;
  } else if (params.window > 0) {
    range.end = std::min(range.end, position + params.window);
  }
  return range;
}

BlockAttentionWorkspace block_attention_workspace(const BlockAttentionShape& shape) {
  BlockAttentionWorkspace workspace{};
  if (shape.batch <= 0 || shape.tokens <= 0 || shape.kv_heads <= 0) return workspace;
  const int64_t rows = shape.tokens * (shape.q_heads / shape.kv_heads);
  workspace.max_items = shape.kv_heads * (std::min(shape.batch, shape.tokens) + rows / kBlockAttentionRows);
  if (shape.num_splits > 0) {
    workspace.partial_rows = shape.num_splits > 1 ? shape.tokens * shape.q_heads * shape.num_splits : 0;
  } else if (shape.threads > 1) {
    // Items that are split have more than `unit` tiles (see below), so they make fewer than
    // 2 * total / unit <= 2 * kTasksPerThread * threads tasks.
    const int64_t most_splits =
        ceil_div(ceil_div(shape.max_context + shape.tokens, kBlockAttentionTile), kMinTilesPerSplit);
    workspace.partial_rows = std::min(2 * kTasksPerThread * shape.threads * std::min(rows, kBlockAttentionRows),
                                      most_splits > 1 ? shape.tokens * shape.q_heads * most_splits : 0);
  }
  workspace.partials_offset = align(workspace.max_items * static_cast<int64_t>(sizeof(BlockAttentionItem)));
  workspace.statistics_offset = align(workspace.partials_offset + workspace.partial_rows * shape.head_dim * 4);
  workspace.bytes = align(workspace.statistics_offset + workspace.partial_rows * 2 * 4);
  return workspace;
}

int64_t plan_block_attention(const BlockAttentionParams& params, int64_t threads, BlockAttentionItem* items,
                             int64_t* tasks) {
  const int64_t group = params.q_heads / params.kv_heads;
  int64_t count = 0;
  int64_t total_tiles = 0;
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t rows_each = params.tokens / params.batch;
    const int32_t* cu = params.cu_block_lens;
    const int64_t begin = cu == nullptr ? request * rows_each : cu[request * params.cu_block_lens_stride];
    const int64_t end = cu == nullptr ? begin + rows_each : cu[(request + 1) * params.cu_block_lens_stride];
    const int64_t context_len = params.context_lens[request * params.context_lens_stride];
    const int64_t rows = (end - begin) * group;
    for (int64_t row = 0; row < rows; row += kBlockAttentionRows) {
      const int64_t item_rows = std::min(kBlockAttentionRows, rows - row);
      const KeyRange first = visible_keys(params, context_len, end - begin, row / group);
      const KeyRange last = visible_keys(params, context_len, end - begin, (row + item_rows - 1) / group);
      for (int64_t kv_head = 0; kv_head < params.kv_heads; ++kv_head) {
        BlockAttentionItem& item = items[count++];
        item = {request, kv_head, begin, context_len, end - begin, row, item_rows, first.begin, last.end, 1, 0, 0, 0};
        total_tiles += tiles_of(item);
      }
    }
  }
  const int64_t unit = std::max(kMinTilesPerSplit, ceil_div(total_tiles, kTasksPerThread * threads));
  *tasks = 0;
  int64_t partial_row = 0;
  for (int64_t i = 0; i < count; ++i) {
    BlockAttentionItem& item = items[i];
    const int64_t tiles = tiles_of(item);
    if (params.num_splits > 0) {
      item.splits = std::min(params.num_splits, tiles);
    } else if (threads > 1) {
      item.splits = ceil_div(tiles, unit);
    }
    item.tiles_per_split = ceil_div(tiles, item.splits);
    item.first_task = *tasks;
    item.partial_row = partial_row;
    *tasks += item.splits;
    if (item.splits > 1) partial_row += item.splits * item.rows;
  }
  return count;
}

}  // namespace dflash::plan
