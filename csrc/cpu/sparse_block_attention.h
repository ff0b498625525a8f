#pragma once
#include "params/block_attention.h"
#include "params/select_pages.h"

namespace dflash::cpu {

// block_attention over the selected pages. Lengths, the selection and the page ids it leads to must have been checked.
void sparse_block_attention(BlockAttentionParams params, const PageSelection& selection, int64_t threads);

}  // namespace dflash::cpu
