#include "cpu/commit_block.h"

#include "bindings/cuda_backend.h"
#include "params/flags.h"
#include "plan/cuda/commit_block.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "commit_block";

// Finished and idle requests are left alone, whatever their lengths say.
void check_lengths(const CommitBlockParams& params) {
  for (int64_t i = 0; i < params.batch; ++i) {
    if (flag_at(params.finished, i * params.finished_stride) || params.tokens[i * params.tokens_stride] < 0) continue;
    const std::string place = "[" + std::to_string(i) + "]";
    const int64_t accepted = params.accepted[i * params.accepted_stride];
    if (accepted < 0 || accepted >= params.block) {
      raise(kOp, "accepted" + place, "0 to " + std::to_string(params.block - 1), std::to_string(accepted));
    }
    const int64_t length = params.output_lens[i * params.output_lens_stride];
    if (length < 0 || length > params.capacity) {
      raise(kOp, "output_lens" + place, "0 to " + std::to_string(params.capacity), std::to_string(length));
    }
    const int64_t context_len = params.context_lens[i * params.context_lens_stride];
    const int64_t longest = INT32_MAX - params.block;
    if (context_len < 0 || context_len > longest) {
      raise(kOp, "context_lens" + place, "0 to " + std::to_string(longest), std::to_string(context_len));
    }
  }
}

}  // namespace

template <Backend backend>
void commit_block(const Tensor& tokens, const Tensor& accepted, const Tensor& slot_mapping,
                  const OptionalTensor& stop_token_ids, const OptionalTensor& max_output_lens,
                  const Tensor& context_lens, const Tensor& next_token, const Tensor& output_ids,
                  const Tensor& output_lens, const Tensor& finished, const Tensor& committed,
                  const Tensor& context_slots) {
  TensorCheck(kOp, "tokens", tokens).dim(2).dtype(ScalarType::Long).last_contiguous();
  const int64_t batch = tokens.size(0), block = tokens.size(1);
  TensorCheck(kOp, "tokens", tokens).expect(batch == 0 || block > 0, "at least one column", to_string(tokens));
  const auto check = [&](const char* name, const Tensor& tensor, ScalarType dtype,
                         std::initializer_list<int64_t> shape) {
    TensorCheck(kOp, name, tensor).same_device(tokens).dtype(dtype).shape(shape);
    if (shape.size() == 2) TensorCheck(kOp, name, tensor).last_contiguous();
  };
  check("accepted", accepted, ScalarType::Int, {batch});
  check("slot_mapping", slot_mapping, ScalarType::Long, {batch, block});
  if (stop_token_ids) {
    check("stop_token_ids", *stop_token_ids, ScalarType::Long, {-1});
    TensorCheck(kOp, "stop_token_ids", *stop_token_ids).contiguous();
  }
  if (max_output_lens) check("max_output_lens", *max_output_lens, ScalarType::Int, {batch});
  const auto check_output = [&](const char* name, const Tensor& tensor, ScalarType dtype,
                                std::initializer_list<int64_t> shape) {
    check(name, tensor, dtype, shape);
    TensorCheck(kOp, name, tensor).writable();
  };
  check_output("context_lens", context_lens, ScalarType::Int, {batch});
  check_output("next_token", next_token, ScalarType::Long, {batch});
  check_output("output_ids", output_ids, ScalarType::Long, {batch, -1});
  check_output("output_lens", output_lens, ScalarType::Int, {batch});
  check_output("finished", finished, ScalarType::Bool, {batch});
  check_output("committed", committed, ScalarType::Int, {batch});
  check_output("context_slots", context_slots, ScalarType::Long, {batch, block});
  // Slots may be replaced in place.
  const bool in_place = context_slots.data_ptr() == slot_mapping.data_ptr() &&
                        context_slots.stride(0) == slot_mapping.stride(0) &&
                        (block == 1 || context_slots.stride(1) == slot_mapping.stride(1));
  const OptionalTensor other_slots = in_place ? OptionalTensor{} : OptionalTensor{slot_mapping};
  check_separate(kOp,
                 {{"context_lens", context_lens},
                  {"next_token", next_token},
                  {"output_ids", output_ids},
                  {"output_lens", output_lens},
                  {"finished", finished},
                  {"committed", committed},
                  {"context_slots", context_slots}},
                 {{"tokens", tokens},
                  {"accepted", accepted},
                  {"slot_mapping", other_slots},
                  {"stop_token_ids", stop_token_ids},
                  {"max_output_lens", max_output_lens}});

  CommitBlockParams params{};
  params.tokens = static_cast<const int64_t*>(tokens.data_ptr());
  params.tokens_stride = tokens.stride(0);
  params.accepted = static_cast<const int32_t*>(accepted.data_ptr());
  params.accepted_stride = accepted.stride(0);
  params.slot_mapping = static_cast<const int64_t*>(slot_mapping.data_ptr());
  params.slot_mapping_stride = slot_mapping.stride(0);
  params.stop_token_ids = data_or_null<int64_t>(stop_token_ids);
  params.stop_tokens = stop_token_ids ? stop_token_ids->size(0) : 0;
  params.max_output_lens = data_or_null<int32_t>(max_output_lens);
  params.max_output_lens_stride = max_output_lens ? max_output_lens->stride(0) : 0;
  params.batch = batch;
  params.block = block;
  params.capacity = output_ids.size(1);
  params.context_lens = static_cast<int32_t*>(context_lens.data_ptr());
  params.context_lens_stride = context_lens.stride(0);
  params.next_token = static_cast<int64_t*>(next_token.data_ptr());
  params.next_token_stride = next_token.stride(0);
  params.output_ids = static_cast<int64_t*>(output_ids.data_ptr());
  params.output_ids_stride = output_ids.stride(0);
  params.output_lens = static_cast<int32_t*>(output_lens.data_ptr());
  params.output_lens_stride = output_lens.stride(0);
  params.finished = static_cast<bool*>(finished.data_ptr());
  params.finished_stride = finished.stride(0);
  params.committed = static_cast<int32_t*>(committed.data_ptr());
  params.committed_stride = committed.stride(0);
  params.context_slots = static_cast<int64_t*>(context_slots.data_ptr());
  params.context_slots_stride = context_slots.stride(0);
  if constexpr (backend == Backend::kCuda) {
    cuda_device(kOp, tokens);
    cuda_launch(kOp, tokens, cuda::plan_commit_block(params));
  } else {
    check_lengths(params);
    cpu::commit_block(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(commit_block)
