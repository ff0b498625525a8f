// The plan of masked_block_attention; plan/masked_block_attention_tile.h says what it consists of.
#pragma once
#include <vector>

#include "plan/masked_block_attention_tile.h"

namespace dflash::plan {

struct MaskedBlockAttentionPlan {
  std::vector<int32_t> order;  // of the blocks in anchor mode, else empty
  std::vector<MaskedBlockAttentionTile> tiles;
  std::vector<MaskedBlockAttentionChunk> chunks;
  int64_t partial_keys;  // of all chunks
};

// Keeps the memory of `plan`'s vectors. Chunks are made only if asked for.
void plan_masked_block_attention(const MaskedBlockAttentionParams& params, bool with_chunks,
                                 MaskedBlockAttentionPlan* plan);

}  // namespace dflash::plan
