#include "bindings/verify_checks.h"

namespace dflash::bindings {

VerifyParams checked_verify_params(const char* op, const VerifyArguments& arguments) {
  const Tensor& drafts = arguments.draft_tokens;
  TensorCheck(op, "draft_tokens", drafts).dim(2).dtype(ScalarType::Long).last_contiguous();
  VerifyParams params{};
  params.batch = drafts.size(0);
  params.drafts = drafts.size(1);
  params.draft_tokens = static_cast<const int64_t*>(drafts.data_ptr());
  params.draft_stride = drafts.stride(0);
  const int64_t rows = params.drafts + 1;

  if (arguments.draft_lens) {
    const Tensor& lens = *arguments.draft_lens;
    TensorCheck(op, "draft_lens", lens).same_device(drafts).dtype(ScalarType::Int).shape({params.batch});
    params.draft_lens = static_cast<const int32_t*>(lens.data_ptr());
    params.draft_lens_stride = lens.stride(0);
  }
  if (arguments.target_logits.has_value() == arguments.target_ids.has_value()) {
    raise(op, "target_logits, target_ids", "exactly one of them", arguments.target_ids ? "both" : "neither");
  }
  if (arguments.target_logits) {
    const Tensor& logits = *arguments.target_logits;
    TensorCheck(op, "target_logits", logits)
        .same_device(drafts)
        .floating()
        .shape({params.batch, rows, -1})
        .last_contiguous()
        .expect(params.batch == 0 || logits.size(2) > 0, "at least one column", to_string(logits));
    params.logits = logits.data_ptr();
    params.dtype = dtype_of(logits);
    params.vocabulary = logits.size(2);
    params.logits_batch_stride = logits.stride(0);
    params.logits_row_stride = logits.stride(1);
  } else {
    const Tensor& ids = *arguments.target_ids;
    TensorCheck(op, "target_ids", ids)
        .same_device(drafts)
        .dtype(ScalarType::Long)
        .shape({params.batch, rows})
        .last_contiguous();
    params.target_ids = static_cast<const int64_t*>(ids.data_ptr());
    params.target_ids_stride = ids.stride(0);
  }

  TensorCheck(op, "accepted", arguments.accepted)
      .same_device(drafts)
      .dtype(ScalarType::Int)
      .shape({params.batch})
      .writable();
  TensorCheck(op, "tokens", arguments.tokens)
      .same_device(drafts)
      .dtype(ScalarType::Long)
      .shape({params.batch, rows})
      .last_contiguous()
      .writable();
  TensorCheck(op, "next_token", arguments.next_token)
      .same_device(drafts)
      .dtype(ScalarType::Long)
      .shape({params.batch})
      .writable();
  check_separate(op,
                 {{"accepted", arguments.accepted}, {"tokens", arguments.tokens}, {"next_token", arguments.next_token}},
                 {{"draft_tokens", drafts},
                  {"draft_lens", arguments.draft_lens},
                  {"target_logits", arguments.target_logits},
                  {"target_ids", arguments.target_ids}});
  params.accepted = static_cast<int32_t*>(arguments.accepted.data_ptr());
  params.accepted_stride = arguments.accepted.stride(0);
  params.tokens = static_cast<int64_t*>(arguments.tokens.data_ptr());
  params.tokens_stride = arguments.tokens.stride(0);
  params.next_token = static_cast<int64_t*>(arguments.next_token.data_ptr());
  params.next_token_stride = arguments.next_token.stride(0);
  return params;
}

void check_draft_lens(const char* op, const VerifyParams& params) {
  for (int64_t i = 0; params.draft_lens != nullptr && i < params.batch; ++i) {
    const int64_t length = params.draft_lens[i * params.draft_lens_stride];
    if (length < -1 || length > params.drafts) {
      raise(op, "draft_lens[" + std::to_string(i) + "]", "-1 (idle) to " + std::to_string(params.drafts),
            std::to_string(length));
    }
  }
}

}  // namespace dflash::bindings
