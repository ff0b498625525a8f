// Argument checks and parameters shared by verify_greedy and verify_sampled.
#pragma once
#include "bindings/checks.h"
#include "params/verify.h"

namespace dflash::bindings {

struct VerifyArguments {
  const Tensor& draft_tokens;
  const OptionalTensor& draft_lens;
  const OptionalTensor& target_logits;
  const OptionalTensor& target_ids;
  const Tensor& accepted;
  const Tensor& tokens;
  const Tensor& next_token;
};

VerifyParams checked_verify_params(const char* op, const VerifyArguments& arguments);

// The draft lengths are data, so only the CPU can look at them before anything is written.
void check_draft_lens(const char* op, const VerifyParams& params);

}  // namespace dflash::bindings
