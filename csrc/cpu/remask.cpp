#include "cpu/remask.h"

#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/row_argmax.h"
#include "cpu/scratch.h"
#include "cpu/verify_sampled.h"

namespace dflash::cpu {
namespace {

struct Choice {
  float confidence;
  int64_t position;
  int64_t token;
};

// NaN confidences come last; equal ones go to the lower position.
bool more_confident(const Choice& a, const Choice& b) {
  const float left = std::isnan(a.confidence) ? -1.0f : a.confidence;
  const float right = std::isnan(b.confidence) ? -1.0f : b.confidence;
  return left > right || (left == right && a.position < b.position);
}

// Argmax and its softmax probability over all columns but `excluded` (which may lie outside the row).
Choice choose(const RemaskParams& params, const char* logits, int64_t excluded, int64_t position, float* values) {
  const auto argmax = DFLASH_KERNEL(argmax_stretch);
  const int64_t columns = params.vocabulary;
  const bool excludes = excluded >= 0 && excluded < columns;
  const int64_t before = excludes ? excluded : columns;
  const int64_t after = columns - before - 1;
  ArgmaxPartial best{-INFINITY, -1};
  if (before > 0) best = argmax(logits, params.dtype, before);
  if (after > 0) {
    ArgmaxPartial right = argmax(logits + (before + 1) * dtype_size(params.dtype), params.dtype, after);
    right.index += before + 1;
    best = best.index < 0 ? right : merge_argmax(best, right);
  }
  DFLASH_KERNEL(row_to_float)(logits, params.dtype, columns, values);
  if (excludes) values[excluded] = -INFINITY;
  const double total = DFLASH_KERNEL(exp_weights)(values, columns, best.value, 1.0f, nullptr);
  return {static_cast<float>(1.0 / total), position, best.index};
}

}  // namespace

void remask(const RemaskParams& params) {
  const int64_t choice_bytes = (params.positions * static_cast<int64_t>(sizeof(Choice)) + 63) / 64 * 64;
  parallel_tasks(params.batch, 1, [&](int64_t request) {
    int64_t* tokens = params.tokens + request * params.tokens_stride;
    float* confidence = params.confidence != nullptr ? params.confidence + request * params.confidence_stride : nullptr;
    auto* scratch = static_cast<char*>(thread_scratch(choice_bytes + params.vocabulary * 4));
    auto* choices = reinterpret_cast<Choice*>(scratch);
    auto* values = reinterpret_cast<float*>(scratch + choice_bytes);
    int64_t masked = 0;
    for (int64_t position = 0; position < params.positions; ++position) {
      if (confidence != nullptr) confidence[position] = 0.0f;
      if (tokens[position] != params.mask_token_id) continue;
      const int64_t offset = request * params.logits_batch_stride + position * params.logits_row_stride;
      const char* logits = static_cast<const char*>(params.logits) + offset * dtype_size(params.dtype);
      choices[masked] = choose(params, logits, params.mask_token_id, position, values);
      if (confidence != nullptr) confidence[position] = choices[masked].confidence;
      ++masked;
    }
    const int64_t keep = std::min<int64_t>(params.keep[request * params.keep_stride], masked);
    std::partial_sort(choices, choices + keep, choices + masked, more_confident);
    for (int64_t i = 0; i < keep; ++i) tokens[choices[i].position] = choices[i].token;
  });
}

}  // namespace dflash::cpu
