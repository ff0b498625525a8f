#pragma once
#include <cstdint>

namespace dflash {

struct CommitBlockParams {
  const int64_t* tokens;  // [batch, block]
  int64_t tokens_stride;
  const int32_t* accepted;  // [batch]
  int64_t accepted_stride;
  const int64_t* slot_mapping;  // [batch, block]
  int64_t slot_mapping_stride;
  const int64_t* stop_token_ids;  // [stop_tokens] or null
  int64_t stop_tokens;
  const int32_t* max_output_lens;  // [batch] or null
  int64_t max_output_lens_stride;
  int64_t batch;
  int64_t block;
  int64_t capacity;
  int32_t* context_lens;  // [batch]
  int64_t context_lens_stride;
  int64_t* next_token;  // [batch]
  int64_t next_token_stride;
  int64_t* output_ids;  // [batch, capacity]
  int64_t output_ids_stride;
  int32_t* output_lens;  // [batch]
  int64_t output_lens_stride;
  bool* finished;  // [batch]
  int64_t finished_stride;
  int32_t* committed;  // [batch]
  int64_t committed_stride;
  int64_t* context_slots;  // [batch, block]
  int64_t context_slots_stride;
};

}  // namespace dflash
