#include "cpu/verify_greedy.h"

#include "cpu/parallel.h"
#include "cpu/row_argmax.h"
#include "cpu/verify.h"

namespace dflash::cpu {

void verify_greedy(const VerifyParams& params) {
  if (params.target_ids != nullptr) {
    for (int64_t request = 0; request < params.batch; ++request) {
      const int64_t* ids = params.target_ids + request * params.target_ids_stride;
      verify_request(params, request, [&](int64_t row) { return ids[row]; });
    }
    return;
  }
  const auto kernel = DFLASH_KERNEL(argmax_stretch);
  const auto row_of = [&](int64_t request, int64_t row) {
    const int64_t offset = request * params.logits_batch_stride + row * params.logits_row_stride;
    return static_cast<const char*>(params.logits) + offset * dtype_size(params.dtype);
  };
  if (params.batch < thread_count()) {  // too few requests to give every thread one: split the rows instead
    for (int64_t request = 0; request < params.batch; ++request) {
      verify_request(params, request, [&](int64_t row) {
        return argmax_over_threads(row_of(request, row), params.dtype, params.vocabulary).index;
      });
    }
    return;
  }
  parallel_tasks(params.batch, 1, [&](int64_t request) {
    verify_request(params, request,
                   [&](int64_t row) { return kernel(row_of(request, row), params.dtype, params.vocabulary).index; });
  });
}

}  // namespace dflash::cpu
