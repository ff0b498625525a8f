#pragma once
#include "params/dtype.h"

namespace dflash {

struct RemaskParams {
  const void* logits;  // [batch, positions, vocabulary]
  DType dtype;
  int64_t batch;
  int64_t positions;
  int64_t vocabulary;
  int64_t logits_batch_stride;  // elements
  int64_t logits_row_stride;
  int64_t* tokens;  // [batch, positions]
  int64_t tokens_stride;
  int64_t mask_token_id;
  const int32_t* keep;  // [batch]
  int64_t keep_stride;
  float* confidence;  // [batch, positions] or null
  int64_t confidence_stride;
};

}  // namespace dflash
