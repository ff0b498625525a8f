#include "cpu/verify_sampled.h"

#include "cpu/parallel.h"
#include "cpu/row_sampling.h"
#include "cpu/verify.h"
#include "params/philox.h"

namespace dflash::cpu {

void verify_sampled(const VerifyParams& params, const SamplingParams& sampling) {
  const bool over_threads = params.batch < thread_count();  // too few requests to give every thread one
  const auto verify = [&](int64_t request) {
    const RowSampling row_sampling{sampling.temperature[request * sampling.temperature_stride],
                                   sampling.top_k[request * sampling.top_k_stride],
                                   sampling.top_p[request * sampling.top_p_stride]};
    const auto seed = static_cast<uint64_t>(sampling.seed[request * sampling.seed_stride]);
    int64_t& offset = sampling.offset[request * sampling.offset_stride];
    offset += verify_request(params, request, [&](int64_t index) {
      const int64_t start = request * params.logits_batch_stride + index * params.logits_row_stride;
      const LogitRow row{static_cast<const char*>(params.logits) + start * dtype_size(params.dtype), params.dtype,
                         params.vocabulary};
      return sample_row(row, row_sampling, philox_uniform(seed, static_cast<uint64_t>(offset + index)), over_threads);
    });
  };
  if (over_threads) {
    for (int64_t request = 0; request < params.batch; ++request) verify(request);
    return;
  }
  parallel_tasks(params.batch, 1, verify);
}

}  // namespace dflash::cpu
