#include "cpu/verify_sampled.h"

#include "cpu/row_sampling.h"
#include "cpu/verify.h"
#include "params/philox.h"

namespace dflash::cpu {

void verify_sampled(const VerifyParams& params, const SamplingParams& sampling) {
  const auto choose = [&](int64_t request, int64_t row) {
    const RowSampling row_sampling{sampling.temperature[request * sampling.temperature_stride],
                                   sampling.top_k[request * sampling.top_k_stride],
                                   sampling.top_p[request * sampling.top_p_stride]};
    const auto seed = static_cast<uint64_t>(sampling.seed[request * sampling.seed_stride]);
    const int64_t number = sampling.offset[request * sampling.offset_stride] + row;
    return sample_row({logits_of(params, request, row), params.dtype, params.vocabulary}, row_sampling,
                      philox_uniform(seed, static_cast<uint64_t>(number)));
  };
  verify_batch(params, choose,
               [&](int64_t request, int64_t emitted) { sampling.offset[request * sampling.offset_stride] += emitted; });
}

}  // namespace dflash::cpu
