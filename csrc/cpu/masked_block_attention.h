#pragma once
#include "cpu/isa.h"
#include "params/masked_block_attention.h"
#include "plan/masked_block_attention_tile.h"

namespace dflash::cpu {

void masked_block_attention_forward(const MaskedBlockAttentionParams& params);
void masked_block_attention_backward(const MaskedBlockAttentionParams& params);

// The rows of a tile that belong to one kv head. `order` maps ordered blocks to blocks (null: no anchors).
struct MaskedBlockAttentionTask {
  const int32_t* order;
  int64_t kv_head;
};

// Sums of a chunk's rows: [keys of the chunk][padded head_dim] for keys and for values.
struct MaskedBlockAttentionPartial {
  float* keys;
  float* values;
};

}  // namespace dflash::cpu

// Writes out and lse of a tile's rows.
DFLASH_DECLARE_KERNEL(void, masked_block_attention_tile,
                      (const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
                       const plan::MaskedBlockAttentionTile& tile, void* scratch))
// Writes grad_q of a chunk's rows and their contribution to grad_k and grad_v; `tiles` is the whole plan's.
DFLASH_DECLARE_KERNEL(void, masked_block_attention_chunk,
                      (const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
                       const plan::MaskedBlockAttentionTile* tiles, const plan::MaskedBlockAttentionChunk& chunk,
                       const cpu::MaskedBlockAttentionPartial& partial, void* scratch))
// target[d] = the sum of source[d] over `count` sources, in their order; `target` is of `dtype`.
DFLASH_DECLARE_KERNEL(void, masked_block_attention_sum,
                      (const float* const* sources, int64_t count, int64_t head_dim, DType dtype, void* target))
