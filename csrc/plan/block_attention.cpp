#include "plan/block_attention.h"

#include <algorithm>

#include "plan/size.h"

namespace dflash::plan {
namespace {

// Tasks a thread should get, so that uneven ones even out. They are handed out one by one.
constexpr int64_t kTasksPerThread = 4;
// A split shorter than this costs more in packing queries and combining than it gains.
constexpr int64_t kMinTilesPerSplit = 4;
// Each head's rows are padded to whole vectors.
constexpr int64_t kRowAlignment = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t tiles_of(const BlockAttentionItem& item) {
  return ceil_div(item.key_end - item.key_begin, kBlockAttentionTile);
}

int64_t work_of(const BlockAttentionItem& item) { return tiles_of(item) * item.heads; }

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

BlockAttentionShape block_attention_shape(const BlockAttentionParams& params, int64_t threads) {
  return {params.batch,      params.tokens,   params.q_heads,
          params.kv_heads,   params.head_dim, params.max_pages * params.page_size,
          params.num_splits, threads};
}

BlockAttentionWorkspace block_attention_workspace(const BlockAttentionShape& shape) {
  BlockAttentionWorkspace workspace{};
  if (shape.batch <= 0 || shape.tokens <= 0 || shape.kv_heads <= 0) return workspace;
  const Size rows = Size(shape.tokens) * (shape.q_heads / shape.kv_heads);
  const Size max_items =
      Size(shape.kv_heads) * (Size(std::min(shape.batch, shape.tokens)) + rows.value() / kBlockAttentionRows);
  const Size head_rows = Size(shape.tokens) * shape.q_heads;
  const Size tiles = (Size(shape.max_context) + shape.tokens).divided_up(kBlockAttentionTile);
  Size partial_rows = 0;
  if (shape.num_splits > 0) {
    // There are no more splits than tiles.
    const Size splits = std::min(Size(shape.num_splits), tiles);
    if (splits.value() > 1) partial_rows = head_rows * splits;
  } else if (shape.threads > 1) {
    // Items that are split have more than `unit` work (see below), so they make fewer than
    // 2 * total / unit <= 2 * kTasksPerThread * threads tasks.
    const Size most_splits = tiles.divided_up(kMinTilesPerSplit);
    if (most_splits.value() > 1) {
      partial_rows =
          std::min(Size(2 * kTasksPerThread * shape.threads) * std::min(head_rows, Size(kBlockAttentionRows)),
                   head_rows * most_splits);
    }
  }
  const Size partials_offset = (max_items * static_cast<int64_t>(sizeof(BlockAttentionItem))).rounded_up(64);
  const Size statistics_offset = (partials_offset + partial_rows * shape.head_dim * 4).rounded_up(64);
  workspace.max_items = max_items.value();
  workspace.partial_rows = partial_rows.value();
  workspace.partials_offset = partials_offset.value();
  workspace.statistics_offset = statistics_offset.value();
  workspace.bytes = (statistics_offset + partial_rows * 2 * 4).rounded_up(64).value();
  return workspace;
}

int64_t plan_block_attention(const BlockAttentionParams& params, int64_t threads, BlockAttentionItem* items,
                             int64_t* tasks) {
  const int64_t group = params.q_heads / params.kv_heads;
  // Enough items for every thread, if there are that many heads. Heads with pages of their own share nothing.
  const bool own_pages = params.head_pages != nullptr;
  const int64_t heads_wanted = own_pages ? 1 : ceil_div(params.batch * params.kv_heads, threads);
  int64_t count = 0, total_work = 0, largest_work = 0;
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t rows_each = params.tokens / params.batch;
    const int32_t* cu = params.cu_block_lens;
    const int64_t begin = cu == nullptr ? request * rows_each : cu[request * params.cu_block_lens_stride];
    const int64_t end = cu == nullptr ? begin + rows_each : cu[(request + 1) * params.cu_block_lens_stride];
    const int64_t rows = (end - begin) * group;
    for (int64_t row = 0; row < rows; row += kBlockAttentionRows) {
      const int64_t item_rows = std::min(kBlockAttentionRows, rows - row);
      const int64_t heads_fit = kBlockAttentionRows / (ceil_div(item_rows, kRowAlignment) * kRowAlignment);
      const int64_t head_items = ceil_div(params.kv_heads, std::min(heads_fit, heads_wanted));
      const int64_t heads = ceil_div(params.kv_heads, head_items);
      for (int64_t kv_head = 0; kv_head < params.kv_heads; kv_head += heads) {
        BlockAttentionItem& item = items[count++];
        item = {};
        item.request = request;
        item.kv_head = kv_head;
        item.heads = std::min(heads, params.kv_heads - kv_head);
        item.first_token = begin;
        if (own_pages) {
          const int64_t list = request * params.kv_heads + kv_head;
          item.pages = params.head_pages + list * params.max_pages;
          item.context_len = params.head_context_lens[list];
        } else {
          item.pages = params.page_table + request * params.page_table_stride;
          item.context_len = params.context_lens[request * params.context_lens_stride];
        }
        item.block_len = end - begin;
        item.first_row = row;
        item.rows = item_rows;
        item.key_begin = visible_keys(params, item.context_len, item.block_len, row / group).begin;
        item.key_end = visible_keys(params, item.context_len, item.block_len, (row + item_rows - 1) / group).end;
        total_work += work_of(item);
        largest_work = std::max(largest_work, work_of(item));
      }
    }
  }
  const bool even = threads == 1 || (largest_work * count == total_work && count % threads == 0);
  const int64_t unit = even ? largest_work : ceil_div(total_work, kTasksPerThread * threads);
  int64_t partial_row = 0;
  *tasks = 0;
  for (int64_t i = 0; i < count; ++i) {
    BlockAttentionItem& item = items[i];
    const int64_t tiles = tiles_of(item);
    item.splits = params.num_splits > 0 ? std::min(params.num_splits, tiles)
                                        : std::min(ceil_div(work_of(item), unit), ceil_div(tiles, kMinTilesPerSplit));
    item.tiles_per_split = ceil_div(tiles, item.splits);
    item.splits = ceil_div(tiles, item.tiles_per_split);  // none of them empty
    item.first_task = *tasks;
    item.partial_row = partial_row;
    *tasks += item.splits;
    if (item.splits > 1) partial_row += item.splits * item.heads * item.rows;
  }
  return count;
}

}  // namespace dflash::plan
