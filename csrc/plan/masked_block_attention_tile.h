// How masked_block_attention cuts its work into tasks.
//
// A row is one (query, head of a GQA group) pair: row = ordered query * group + head, where anchor blocks are ordered
// by their anchors (padding last), so that neighbouring rows see nearly the same context. A tile is a stretch of rows
// of one document whose contexts touch: every key between its first and its last is seen by one of its rows. The
// forward pass has a task per (tile, kv head).
//
// A chunk is a run of tiles of whole blocks. The backward pass has a task per (chunk, kv head), which finishes the
// gradients of its queries and sums the gradients of all keys its rows see; these partial sums are then added up in the
// order of the chunks. Chunks depend on shapes and masks alone, so results do not depend on the number of threads.
#pragma once
#include "params/masked_block_attention.h"

namespace dflash::plan {

// 8 panels of 24 rows (AVX2), 4 of 48 (AVX-512); 8 blocks of 8 with a group of 3, 3 blocks of 16 with a group of 4.
constexpr int64_t kMaskedBlockAttentionRows = 192;
// (chunk, kv head) tasks the backward pass aims at: enough for 16 threads to even out. Memory of partial sums grows
// with it.
constexpr int64_t kMaskedBlockAttentionChunkTasks = 32;

struct MaskedBlockAttentionTile {
  int64_t first_row, rows;
  int64_t document_begin, document_end;
  int64_t context_begin, context_end;  // what its rows see together
};

struct MaskedBlockAttentionChunk {
  int64_t first_tile, tiles;
  int64_t context_begin, context_end;  // what its rows see together
  int64_t first_block, blocks;         // in order of anchors; anchor mode only
  int64_t first_partial;               // keys of all earlier chunks; its own are the context's, then the blocks'
};

}  // namespace dflash::plan
