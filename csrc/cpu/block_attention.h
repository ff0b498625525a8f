#pragma once
#include "cpu/isa.h"
#include "params/block_attention.h"
#include "plan/block_attention.h"

namespace dflash::cpu {

void block_attention(const BlockAttentionParams& params, int64_t threads);

// Unnormalised results of a split of an item, one entry a row: the sum of p * v, the largest logit and the sum of p,
// where p = 2^(logit - maximum) and logits carry a factor log2(e).
struct BlockAttentionPartial {
  float* values;  // [heads][rows][head_dim]
  float* maxima;  // [heads][rows]
  float* sums;    // [heads][rows]
};

// Bytes of thread scratch a task needs (for the widest vectors).
int64_t block_attention_scratch(int64_t head_dim);

}  // namespace dflash::cpu

// Attends the rows of `item` to the keys of its split number `split`; `scratch` is of block_attention_scratch bytes.
// An item of one split is finished at once, else the split's result goes to `partial`.
DFLASH_DECLARE_KERNEL(void, block_attention_task,
                      (const BlockAttentionParams& params, const plan::BlockAttentionItem& item, int64_t split,
                       const cpu::BlockAttentionPartial& partial, void* scratch))
// Combines the splits of `item` (each lies item.heads * item.rows rows after the one before) and writes out and lse.
DFLASH_DECLARE_KERNEL(void, block_attention_combine,
                      (const BlockAttentionParams& params, const plan::BlockAttentionItem& item,
                       const cpu::BlockAttentionPartial& partial))
