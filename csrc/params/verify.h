// What verify_greedy and verify_sampled share: drafts, their lengths and where the result goes.
#pragma once
#include "params/dtype.h"

namespace dflash {

struct VerifyParams {
  const int64_t* draft_tokens;  // [batch, drafts]
  int64_t draft_stride;
  const int32_t* draft_lens;  // [batch] or null: `drafts` for every request; -1: idle
  int64_t draft_lens_stride;
  int64_t batch;
  int64_t drafts;

  const void* logits;  // [batch, drafts + 1, vocabulary] or null
  DType dtype;
  int64_t vocabulary;
  int64_t logits_batch_stride;  // elements
  int64_t logits_row_stride;
  const int64_t* target_ids;  // [batch, drafts + 1] or null
  int64_t target_ids_stride;

  int32_t* accepted;  // [batch]
  int64_t accepted_stride;
  int64_t* tokens;  // [batch, drafts + 1]
  int64_t tokens_stride;
  int64_t* next_token;  // [batch]
  int64_t next_token_stride;
};

struct SamplingParams {
  const float* temperature;  // [batch] each
  int64_t temperature_stride;
  const int32_t* top_k;
  int64_t top_k_stride;
  const float* top_p;
  int64_t top_p_stride;
  const int64_t* seed;
  int64_t seed_stride;
  int64_t* offset;
  int64_t offset_stride;
};

}  // namespace dflash
