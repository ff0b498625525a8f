#include "cpu/begin_block.h"

#include "bindings/cuda_backend.h"
#include "params/flags.h"
#include "plan/cuda/begin_block.h"

namespace dflash::bindings {
namespace {

void check_lengths(const char* op, const BeginBlockParams& params) {
  for (int64_t i = 0; i < params.batch; ++i) {
    if (params.finished != nullptr && flag_at(params.finished, i * params.finished_stride)) continue;
    const int64_t length = params.context_lens[i * params.context_lens_stride];
    if (length < 0) raise(op, "context_lens[" + std::to_string(i) + "]", "0 or more", std::to_string(length));
  }
}

}  // namespace

template <Backend backend>
void begin_block(const Tensor& next_token, const Tensor& context_lens, const Tensor& page_table, int64_t page_size,
                 int64_t mask_token_id, const OptionalTensor& finished, const Tensor& input_ids,
                 const Tensor& positions, const Tensor& slot_mapping) {
  constexpr const char* op = "begin_block";
  TensorCheck(op, "next_token", next_token).dim(1).dtype(ScalarType::Long);
  const int64_t batch = next_token.size(0);
  TensorCheck(op, "context_lens", context_lens).same_device(next_token).dtype(ScalarType::Int).shape({batch});
  TensorCheck(op, "page_table", page_table)
      .same_device(next_token)
      .dtype(ScalarType::Int)
      .shape({batch, -1})
      .last_contiguous();
  if (page_size <= 0) raise(op, "page_size", "a positive number", std::to_string(page_size));
  if (page_size > INT32_MAX) raise(op, "page_size", "below 2^31", std::to_string(page_size));
  if (mask_token_id < 0) raise(op, "mask_token_id", "a token id", std::to_string(mask_token_id));
  if (finished) {
    TensorCheck(op, "finished", *finished).same_device(next_token).dtype(ScalarType::Bool).shape({batch});
  }
  TensorCheck(op, "input_ids", input_ids).dim(2);
  const int64_t block = input_ids.size(1);
  const auto check_output = [&](const char* name, const Tensor& tensor) {
    TensorCheck(op, name, tensor)
        .same_device(next_token)
        .dtype(ScalarType::Long)
        .shape({batch, block})
        .last_contiguous()
        .writable();
  };
  check_output("input_ids", input_ids);
  check_output("positions", positions);
  check_output("slot_mapping", slot_mapping);
  check_separate(
      op, {{"input_ids", input_ids}, {"positions", positions}, {"slot_mapping", slot_mapping}},
      {{"next_token", next_token}, {"context_lens", context_lens}, {"page_table", page_table}, {"finished", finished}});

  BeginBlockParams params{};
  params.next_token = static_cast<const int64_t*>(next_token.data_ptr());
  params.next_token_stride = next_token.stride(0);
  params.context_lens = static_cast<const int32_t*>(context_lens.data_ptr());
  params.context_lens_stride = context_lens.stride(0);
  params.page_table = static_cast<const int32_t*>(page_table.data_ptr());
  params.page_table_stride = page_table.stride(0);
  params.max_pages = page_table.size(1);
  params.page_size = page_size;
  params.mask_token_id = mask_token_id;
  params.finished = data_or_null<bool>(finished);
  params.finished_stride = finished ? finished->stride(0) : 0;
  params.batch = batch;
  params.block = block;
  params.input_ids = static_cast<int64_t*>(input_ids.data_ptr());
  params.input_ids_stride = input_ids.stride(0);
  params.positions = static_cast<int64_t*>(positions.data_ptr());
  params.positions_stride = positions.stride(0);
  params.slot_mapping = static_cast<int64_t*>(slot_mapping.data_ptr());
  params.slot_mapping_stride = slot_mapping.stride(0);
  if constexpr (backend == Backend::kCuda) {
    cuda_device(op, next_token);
    cuda_launch(op, next_token, cuda::plan_begin_block(params));
  } else {
    check_lengths(op, params);
    cpu::begin_block(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(begin_block)
