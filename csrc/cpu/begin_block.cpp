#include "cpu/begin_block.h"

#include "params/flags.h"

namespace dflash::cpu {

void begin_block(const BeginBlockParams& params) {
  for (int64_t request = 0; request < params.batch; ++request) {
    const bool finished = params.finished != nullptr && flag_at(params.finished, request * params.finished_stride);
    const int64_t start = params.context_lens[request * params.context_lens_stride];
    const int32_t* pages = params.page_table + request * params.page_table_stride;
    int64_t* input_ids = params.input_ids + request * params.input_ids_stride;
    int64_t* positions = params.positions + request * params.positions_stride;
    int64_t* slots = params.slot_mapping + request * params.slot_mapping_stride;
    for (int64_t i = 0; i < params.block; ++i) {
      const int64_t position = start + i;
      const int64_t entry = position / params.page_size;
      const bool has_slot = !finished && entry < params.max_pages && pages[entry] >= 0;
      const bool newest = i == 0 && !finished;
      input_ids[i] = newest ? params.next_token[request * params.next_token_stride] : params.mask_token_id;
      positions[i] = finished ? 0 : position;
      slots[i] = has_slot ? pages[entry] * params.page_size + position % params.page_size : -1;
    }
  }
}

}  // namespace dflash::cpu
