#include "plan/masked_block_attention.h"

#include <algorithm>
#include <numeric>

namespace dflash::plan {
namespace {

using Tile = MaskedBlockAttentionTile;
using Chunk = MaskedBlockAttentionChunk;

int64_t bound(const MaskedBlockAttentionParams& params, int64_t i) {
  return params.cu_seqlens[i * params.cu_seqlens_stride];
}

Document document_number(const MaskedBlockAttentionParams& params, int64_t i) {
  if (params.cu_seqlens == nullptr) return {0, context_tokens(params)};
  return {bound(params, i), bound(params, i + 1)};
}

void order_blocks(const MaskedBlockAttentionParams& params, std::vector<int32_t>* order) {
  order->resize(params.queries / params.block_size);
  std::iota(order->begin(), order->end(), 0);
  const auto key = [&](int32_t block) {
    const int32_t anchor = params.anchors[block * params.anchors_stride];
    return anchor < 0 ? INT32_MAX : anchor;
  };
  // Ties by number: the order, and with it every rounding, is a function of the arguments.
  std::sort(order->begin(), order->end(),
            [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) < key(b) : a < b; });
}

bool is_empty(const Tile& tile) { return tile.context_begin == tile.context_end; }

// Joins `next`, whose rows follow those of `tile`, to it if the result is a tile.
bool join(Tile* tile, const Tile& next) {
  if (tile->rows + next.rows > kMaskedBlockAttentionRows || tile->document_begin != next.document_begin ||
      tile->document_end != next.document_end) {
    return false;
  }
  if (!is_empty(*tile) && !is_empty(next)) {
    if (next.context_begin > tile->context_end) return false;  // keys between them would be seen by no row
    tile->context_end = std::max(tile->context_end, next.context_end);
  } else if (!is_empty(next)) {
    tile->context_begin = next.context_begin;
    tile->context_end = next.context_end;
  }
  tile->rows += next.rows;
  return true;
}

void tile_blocks(const MaskedBlockAttentionParams& params, MaskedBlockAttentionPlan* plan) {
  const int64_t group = params.q_heads / params.kv_heads;
  const int64_t block_rows = params.block_size * group;
  for (size_t i = 0; i < plan->order.size(); ++i) {
    const int64_t block = plan->order[i];
    const int64_t anchor = params.anchors[block * params.anchors_stride];
    const Document document = anchor < 0 ? Document{-1, -1} : document_at(params, anchor);
    for (int64_t row = 0; row < block_rows; row += kMaskedBlockAttentionRows) {
      // Of a block's rows the first sees most of the context.
      const VisibleKeys keys =
          visible_keys(params, document.begin, document.end, block * params.block_size + row / group);
      const Tile tile{static_cast<int64_t>(i) * block_rows + row,
                      std::min(kMaskedBlockAttentionRows, block_rows - row),
                      document.begin,
                      document.end,
                      keys.context_begin,
                      keys.context_end};
      if (plan->tiles.empty() || !join(&plan->tiles.back(), tile)) plan->tiles.push_back(tile);
    }
  }
}

void tile_document(const MaskedBlockAttentionParams& params, const Document& document, int64_t token_begin,
                   int64_t token_end, MaskedBlockAttentionPlan* plan) {
  const int64_t group = params.q_heads / params.kv_heads;
  for (int64_t row = token_begin * group; row < token_end * group; row += kMaskedBlockAttentionRows) {
    const int64_t rows = std::min(kMaskedBlockAttentionRows, token_end * group - row);
    const VisibleKeys first = visible_keys(params, document.begin, document.end, row / group);
    const VisibleKeys last = visible_keys(params, document.begin, document.end, (row + rows - 1) / group);
    plan->tiles.push_back({row, rows, document.begin, document.end, first.context_begin, last.context_end});
  }
}

void make_chunks(const MaskedBlockAttentionParams& params, MaskedBlockAttentionPlan* plan) {
  const bool anchored = params.mode == MaskMode::kAnchor;
  const int64_t block_rows = params.q_heads / params.kv_heads * (anchored ? params.block_size : 1);
  const auto work_of = [&](const Tile& tile) {
    return tile.rows * (tile.context_end - tile.context_begin + (anchored ? params.block_size : 0) + 1);
  };
  int64_t total = 0;
  for (const Tile& tile : plan->tiles) total += work_of(tile);
  const int64_t wanted = std::max<int64_t>(1, kMaskedBlockAttentionChunkTasks / params.kv_heads);
  int64_t done = 0;
  bool starts = true;
  plan->partial_keys = 0;
  for (size_t i = 0; i < plan->tiles.size(); ++i) {
    const Tile& tile = plan->tiles[i];
    if (starts) {
      plan->chunks.push_back({static_cast<int64_t>(i), 0, tile.context_begin, tile.context_end,
                              tile.first_row / block_rows, 0, plan->partial_keys});
    }
    Chunk& chunk = plan->chunks.back();
    ++chunk.tiles;
    if (!is_empty(tile)) {
      const bool first = chunk.context_begin == chunk.context_end;
      chunk.context_begin = first ? tile.context_begin : std::min(chunk.context_begin, tile.context_begin);
      chunk.context_end = std::max(chunk.context_end, tile.context_end);
    }
    done += work_of(tile);
    const bool last = i + 1 == plan->tiles.size();
    const int64_t end_row = tile.first_row + tile.rows;
    starts = last || (done * wanted >= total * static_cast<int64_t>(plan->chunks.size()) &&
                      (!anchored || end_row % block_rows == 0));
    if (starts) {
      if (anchored) chunk.blocks = end_row / block_rows - chunk.first_block;
      plan->partial_keys += chunk.context_end - chunk.context_begin + chunk.blocks * params.block_size;
    }
  }
}

}  // namespace

void plan_masked_block_attention(const MaskedBlockAttentionParams& params, bool with_chunks,
                                 MaskedBlockAttentionPlan* plan) {
  plan->order.clear();
  plan->tiles.clear();
  plan->chunks.clear();
  plan->partial_keys = 0;
  if (params.mode == MaskMode::kAnchor) {
    order_blocks(params, &plan->order);
    tile_blocks(params, plan);
  } else {
    int64_t end = 0;
    const int64_t documents = params.cu_seqlens == nullptr ? 1 : params.documents;
    for (int64_t i = 0; i < documents; ++i) {
      const Document document = document_number(params, i);
      tile_document(params, document, document.begin, document.end, plan);
      end = document.end;
    }
    // Queries behind the last document see nothing.
    tile_document(params, {end, end}, end, params.queries, plan);
  }
  if (with_chunks) make_chunks(params, plan);
}

}  // namespace dflash::plan
