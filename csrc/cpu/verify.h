// The compare-and-commit half of verify_greedy and verify_sampled.
#pragma once
#include "params/verify.h"

namespace dflash::cpu {

// Takes the target's choices of one request row by row until one differs from the draft, so rows that cannot matter are
// never read. Returns the number of emitted tokens (0 for an idle request).
template <typename Choose>
int64_t verify_request(const VerifyParams& params, int64_t request, const Choose& choose) {
  int64_t* tokens = params.tokens + request * params.tokens_stride;
  const int64_t* drafts = params.draft_tokens + request * params.draft_stride;
  const int64_t draft_len =
      params.draft_lens != nullptr ? params.draft_lens[request * params.draft_lens_stride] : params.drafts;
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

}  // namespace dflash::cpu
