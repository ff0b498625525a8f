#include "cpu/verify_greedy.h"

#include "bindings/verify_checks.h"

namespace dflash::bindings {

template <Backend backend>
void verify_greedy(const Tensor& draft_tokens, const OptionalTensor& draft_lens, const OptionalTensor& target_logits,
                   const OptionalTensor& target_ids, const Tensor& accepted, const Tensor& tokens,
                   const Tensor& next_token) {
  constexpr const char* op = "verify_greedy";
  const VerifyParams params =
      checked_verify_params(op, {draft_tokens, draft_lens, target_logits, target_ids, accepted, tokens, next_token});
  if constexpr (backend == Backend::kCuda) raise_no_cuda_kernel(op);
  check_draft_lens(op, params);
  cpu::verify_greedy(params);
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(verify_greedy)
