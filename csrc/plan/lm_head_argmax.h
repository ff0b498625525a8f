// How lm_head_argmax cuts the vocabulary into tasks, and its workspace: the packed activations of one pass, then each
// task's best (value, column) of every row. The logits themselves live only in a tile of each thread's scratch.
#pragma once
#include <cstdint>

namespace dflash::plan {

struct LmHeadArgmaxPlan {
  int64_t stripe_columns;  // of a logit tile
  int64_t task_columns;    // whole stripes
  int64_t tasks;
  int64_t partials_offset;  // bytes; [tasks][rows of a pass] of 16 bytes
  int64_t bytes;
};
LmHeadArgmaxPlan lm_head_argmax_plan(int64_t rows, int64_t hidden_size, int64_t vocab_size);

}  // namespace dflash::plan
