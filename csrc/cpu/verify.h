// The compare-and-commit half of verify_greedy and verify_sampled.
#pragma once
#include <algorithm>

#include "cpu/parallel.h"
#include "params/verify.h"

namespace dflash::cpu {

inline int64_t draft_len_of(const VerifyParams& params, int64_t request) {
  return params.draft_lens != nullptr ? params.draft_lens[request * params.draft_lens_stride] : params.drafts;
}

inline const char* logits_of(const VerifyParams& params, int64_t request, int64_t row) {
  const int64_t offset = request * params.logits_batch_stride + row * params.logits_row_stride;
  return static_cast<const char*>(params.logits) + offset * dtype_size(params.dtype);
}

// Takes the target's choices of one request row by row until one differs from the draft, so rows that cannot matter are
// never read. Returns the number of emitted tokens (0 for an idle request).
template <typename Choose>
int64_t verify_request(const VerifyParams& params, int64_t request, const Choose& choose) {
  int64_t* tokens = params.tokens + request * params.tokens_stride;
  const int64_t* drafts = params.draft_tokens + request * params.draft_stride;
  const int64_t draft_len = draft_len_of(params, request);
  int64_t emitted = 0;
  int64_t last = -1;
  while (emitted <= draft_len) {
    last = choose(emitted);
    tokens[emitted] = last;
    ++emitted;
    if (emitted > draft_len || drafts[emitted - 1] != last) break;
  }
  for (int64_t i = emitted; i <= params.drafts; ++i) tokens[i] = -1;
  params.accepted[request * params.accepted_stride] = static_cast<int32_t>(emitted > 0 ? emitted - 1 : 0);
  params.next_token[request * params.next_token_stride] = last;
  return emitted;
}

// Fills `tokens` with the choices of all rows that can matter, for batches too small to give every thread a request: in
// waves of rows, each twice as wide as the one before, so that threads share a request, meet seldom, and read few rows
// in vain.
template <typename Choose>
void choose_in_waves(const VerifyParams& params, const Choose& choose) {
  const auto wanted = [&](int64_t request, int64_t rows_before) {
    const int64_t* drafts = params.draft_tokens + request * params.draft_stride;
    return draft_len_of(params, request) >= rows_before &&
           std::equal(drafts, drafts + rows_before, params.tokens + request * params.tokens_stride);
  };
  int64_t width = params.batch > 0 ? (thread_count() + params.batch - 1) / params.batch : 1;
  bool goes_on = true;
  for (int64_t begin = 0; goes_on && begin <= params.drafts; begin += width, width *= 2) {
    const int64_t rows = std::min(width, params.drafts + 1 - begin);
    parallel_tasks(params.batch * rows, 1, [&](int64_t task) {
      const int64_t request = task / rows, row = begin + task % rows;
      // Only tokens of earlier waves are looked at: those of this one are being written.
      if (row <= draft_len_of(params, request) && wanted(request, begin)) {
        params.tokens[request * params.tokens_stride + row] = choose(request, row);
      }
    });
    goes_on = false;
    for (int64_t request = 0; request < params.batch; ++request) {
      goes_on = goes_on || wanted(request, std::min(begin + width, params.drafts));
    }
  }
}

// Verifies every request with `choose(request, row)`, on all threads; `done(request, emitted)` follows each.
template <typename Choose, typename Done>
void verify_batch(const VerifyParams& params, const Choose& choose, const Done& done) {
  if (params.batch >= thread_count()) {
    parallel_tasks(params.batch, 1, [&](int64_t request) {
      done(request, verify_request(params, request, [&](int64_t row) { return choose(request, row); }));
    });
    return;
  }
  choose_in_waves(params, choose);
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t* tokens = params.tokens + request * params.tokens_stride;
    done(request, verify_request(params, request, [&](int64_t row) { return tokens[row]; }));
  }
}

}  // namespace dflash::cpu
