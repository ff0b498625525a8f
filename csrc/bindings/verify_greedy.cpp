#include "cpu/verify_greedy.h"

#include "bindings/cuda_backend.h"
#include "bindings/verify_checks.h"
#include "plan/cuda/verify_greedy.h"

namespace dflash::bindings {

template <Backend backend>
void verify_greedy(const Tensor& draft_tokens, const OptionalTensor& draft_lens, const OptionalTensor& target_logits,
                   const OptionalTensor& target_ids, const Tensor& accepted, const Tensor& tokens,
                   const Tensor& next_token, const OptionalTensor& workspace) {
  constexpr const char* op = "verify_greedy";
  const VerifyParams params =
      checked_verify_params(op, {draft_tokens, draft_lens, target_logits, target_ids, accepted, tokens, next_token});
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, draft_tokens);
    const int64_t rows = params.batch * (params.drafts + 1);
    const int64_t bytes = target_logits ? cuda::argmax_rows_workspace_bytes(rows) : 0;
    void* memory = checked_arrivals(op, workspace, draft_tokens, params.batch, bytes);
    cuda_launch(op, draft_tokens, cuda::plan_verify_greedy(params, memory, device));
  } else {
    check_draft_lens(op, params);
    cpu::verify_greedy(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(verify_greedy)
