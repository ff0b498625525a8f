#include "cpu/verify_sampled.h"

#include <cmath>

#include "bindings/cuda_backend.h"
#include "bindings/verify_checks.h"
#include "plan/cuda/verify_sampled.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "verify_sampled";

void check_values(const VerifyParams& params, const SamplingParams& sampling) {
  for (int64_t i = 0; i < params.batch; ++i) {
    const std::string place = "[" + std::to_string(i) + "]";
    const float temperature = sampling.temperature[i * sampling.temperature_stride];
    const float top_p = sampling.top_p[i * sampling.top_p_stride];
    const int32_t top_k = sampling.top_k[i * sampling.top_k_stride];
    if (!(temperature >= 0.0f) || std::isinf(temperature)) {
      raise(kOp, "temperature" + place, "0 (argmax) or a positive finite number", std::to_string(temperature));
    }
    if (!(top_p > 0.0f && top_p <= 1.0f)) raise(kOp, "top_p" + place, "above 0, up to 1", std::to_string(top_p));
    const int64_t offset = sampling.offset[i * sampling.offset_stride];
    if (offset > INT64_MAX - params.drafts - 1) {
      raise(kOp, "offset" + place, "at most 2^63 - 1 less the tokens of a block", std::to_string(offset));
    }
    if (top_k < 0) raise(kOp, "top_k" + place, "0 (off) or a positive number", std::to_string(top_k));
  }
}

}  // namespace

template <Backend backend>
void verify_sampled(const Tensor& draft_tokens, const OptionalTensor& draft_lens, const Tensor& target_logits,
                    const Tensor& temperature, const Tensor& top_k, const Tensor& top_p, const Tensor& seed,
                    const Tensor& offset, const Tensor& accepted, const Tensor& tokens, const Tensor& next_token,
                    const OptionalTensor& workspace) {
  const VerifyParams params =
      checked_verify_params(kOp, {draft_tokens, draft_lens, target_logits, std::nullopt, accepted, tokens, next_token});
  const auto check = [&](const char* name, const Tensor& tensor, ScalarType dtype) {
    TensorCheck(kOp, name, tensor).same_device(draft_tokens).dtype(dtype).shape({params.batch});
  };
  check("temperature", temperature, ScalarType::Float);
  check("top_k", top_k, ScalarType::Int);
  check("top_p", top_p, ScalarType::Float);
  check("seed", seed, ScalarType::Long);
  check("offset", offset, ScalarType::Long);
  TensorCheck(kOp, "offset", offset).writable();
  check_separate(kOp, {{"offset", offset}, {"accepted", accepted}, {"tokens", tokens}, {"next_token", next_token}},
                 {{"draft_tokens", draft_tokens},
                  {"draft_lens", draft_lens},
                  {"target_logits", target_logits},
                  {"temperature", temperature},
                  {"top_k", top_k},
                  {"top_p", top_p},
                  {"seed", seed}});
  SamplingParams sampling{};
  sampling.temperature = static_cast<const float*>(temperature.data_ptr());
  sampling.temperature_stride = temperature.stride(0);
  sampling.top_k = static_cast<const int32_t*>(top_k.data_ptr());
  sampling.top_k_stride = top_k.stride(0);
  sampling.top_p = static_cast<const float*>(top_p.data_ptr());
  sampling.top_p_stride = top_p.stride(0);
  sampling.seed = static_cast<const int64_t*>(seed.data_ptr());
  sampling.seed_stride = seed.stride(0);
  sampling.offset = static_cast<int64_t*>(offset.data_ptr());
  sampling.offset_stride = offset.stride(0);
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(kOp, draft_tokens);
    TensorCheck(kOp, "target_logits", target_logits)
        .expect(params.vocabulary <= cuda::kMostSampledColumns,
                "at most " + std::to_string(cuda::kMostSampledColumns) + " columns on CUDA", to_string(target_logits));
    void* memory =
        checked_arrivals(kOp, workspace, draft_tokens, params.batch,
                         cuda::verify_sampled_workspace_bytes(params.batch, params.drafts, params.vocabulary));
    for (const LaunchPlan& plan : cuda::plan_verify_sampled(params, sampling, memory, device)) {
      cuda_launch(kOp, draft_tokens, plan);
    }
  } else {
    check_draft_lens(kOp, params);
    check_values(params, sampling);
    cpu::verify_sampled(params, sampling);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(verify_sampled)
