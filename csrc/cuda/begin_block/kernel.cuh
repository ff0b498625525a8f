#pragma once
#include "params/begin_block.h"

namespace dflash::cuda {

// One thread for each row of each request's block.
__device__ __forceinline__ void begin_block(const BeginBlockParams& params) {
  const int64_t index = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (index >= params.batch * params.block) return;
  const int64_t request = index / params.block, row = index % params.block;
  const bool finished = params.finished != nullptr && params.finished[request * params.finished_stride];
  int64_t id = params.mask_token_id, position = 0, slot = -1;
  if (!finished) {
    if (row == 0) id = params.next_token[request * params.next_token_stride];
    position = static_cast<int64_t>(params.context_lens[request * params.context_lens_stride]) + row;
    const int64_t entry = position / params.page_size;
    // A negative length is refused on the CPU; here it only must not be followed.
    if (position >= 0 && entry < params.max_pages) {
      const int64_t page = params.page_table[request * params.page_table_stride + entry];
      if (page >= 0) slot = page * params.page_size + position % params.page_size;
    }
  }
  params.input_ids[request * params.input_ids_stride + row] = id;
  params.positions[request * params.positions_stride + row] = position;
  params.slot_mapping[request * params.slot_mapping_stride + row] = slot;
}

}  // namespace dflash::cuda
