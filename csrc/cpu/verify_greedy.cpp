#include "cpu/verify_greedy.h"

#include "cpu/row_argmax.h"
#include "cpu/verify.h"

namespace dflash::cpu {

void verify_greedy(const VerifyParams& params) {
  const auto ignore = [](int64_t, int64_t) {};
  if (params.target_ids != nullptr) {
    for (int64_t request = 0; request < params.batch; ++request) {
      const int64_t* ids = params.target_ids + request * params.target_ids_stride;
      verify_request(params, request, [&](int64_t row) { return ids[row]; });
    }
    return;
  }
  if (params.batch * (params.drafts + 1) < thread_count()) {  // fewer rows than threads: split the rows
    for (int64_t request = 0; request < params.batch; ++request) {
      verify_request(params, request, [&](int64_t row) {
        return argmax_over_threads(logits_of(params, request, row), params.dtype, params.vocabulary).index;
      });
    }
    return;
  }
  const auto kernel = DFLASH_KERNEL(argmax_stretch);
  verify_batch(
      params,
      [&](int64_t request, int64_t row) {
        return kernel(logits_of(params, request, row), params.dtype, params.vocabulary).index;
      },
      ignore);
}

}  // namespace dflash::cpu
