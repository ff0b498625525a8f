#include "cpu/remask.h"

#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/row_argmax.h"
#include "cpu/scratch.h"

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
Choice choose(const RemaskParams& params, const char* logits, int64_t excluded, int64_t position) {
  const auto argmax = DFLASH_KERNEL(argmax_stretch);
  const auto exp_sum = DFLASH_KERNEL(exp_sum);
  const int64_t before = excluded < params.vocabulary ? excluded : params.vocabulary;
  const int64_t after = params.vocabulary - before - 1;
  const char* logits_after = logits + (before + 1) * dtype_size(params.dtype);
  ArgmaxPartial best{-INFINITY, -1};
  if (before > 0) best = argmax(logits, params.dtype, before);
  if (after > 0) {
    ArgmaxPartial right = argmax(logits_after, params.dtype, after);
    right.index += before + 1;
    best = best.index < 0 ? right : merge_argmax(best, right);
  }
  double total = exp_sum(logits, params.dtype, before, best.value);
  if (after > 0) total += exp_sum(logits_after, params.dtype, after, best.value);
  return {static_cast<float>(1.0 / total), position, best.index};
}

}  // namespace

void remask(const RemaskParams& params) {
  const auto token_at = [&](int64_t request, int64_t position) -> int64_t& {
    return params.tokens[request * params.tokens_stride + position];
  };
  // Tasks only write what is theirs, so the scratch of the calling thread serves them all.
  auto* all_choices = static_cast<Choice*>(thread_scratch(params.batch * params.positions * sizeof(Choice)));
  parallel_tasks(params.batch * params.positions, 1, [&](int64_t task) {
    const int64_t request = task / params.positions, position = task % params.positions;
    all_choices[task] = {0.0f, position, -1};
    if (token_at(request, position) == params.mask_token_id) {
      const int64_t offset = request * params.logits_batch_stride + position * params.logits_row_stride;
      const char* logits = static_cast<const char*>(params.logits) + offset * dtype_size(params.dtype);
      all_choices[task] = choose(params, logits, params.mask_token_id, position);
    }
    if (params.confidence != nullptr) {
      params.confidence[request * params.confidence_stride + position] = all_choices[task].confidence;
    }
  });
  for (int64_t request = 0; request < params.batch; ++request) {
    Choice* choices = all_choices + request * params.positions;
    Choice* end = std::remove_if(choices, choices + params.positions, [](const Choice& c) { return c.token < 0; });
    const int64_t keep = std::min<int64_t>(params.keep[request * params.keep_stride], end - choices);
    std::partial_sort(choices, choices + keep, end, more_confident);
    for (int64_t i = 0; i < keep; ++i) token_at(request, choices[i].position) = choices[i].token;
  }
}

}  // namespace dflash::cpu
