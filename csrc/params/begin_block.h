#pragma once
#include <cstdint>

namespace dflash {

struct BeginBlockParams {
  const int64_t* next_token;  // [batch]
  int64_t next_token_stride;
  const int32_t* context_lens;  // [batch]
  int64_t context_lens_stride;
  const int32_t* page_table;  // [batch, max_pages]
  int64_t page_table_stride;
  int64_t max_pages;
  int64_t page_size;
  int64_t mask_token_id;
  const bool* finished;  // [batch] or null
  int64_t finished_stride;
  int64_t batch;
  int64_t block;
  int64_t* input_ids;  // [batch, block] each
  int64_t input_ids_stride;
  int64_t* positions;
  int64_t positions_stride;
  int64_t* slot_mapping;
  int64_t slot_mapping_stride;
};

}  // namespace dflash
