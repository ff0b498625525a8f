#include "cpu/remask.h"

#include "bindings/cuda_backend.h"
#include "plan/cuda/remask.h"

namespace dflash::bindings {

template <Backend backend>
void remask(const Tensor& logits, const Tensor& tokens, int64_t mask_token_id, const Tensor& keep,
            const OptionalTensor& confidence, const OptionalTensor& workspace) {
  constexpr const char* op = "remask";
  TensorCheck(op, "logits", logits).dim(3).floating().last_contiguous();
  const int64_t batch = logits.size(0), positions = logits.size(1), vocabulary = logits.size(2);
  const int64_t excluded = mask_token_id >= 0 && mask_token_id < vocabulary ? 1 : 0;
  TensorCheck(op, "logits", logits)
      .expect(batch * positions == 0 || vocabulary > excluded, "at least one column besides the mask token's",
              to_string(logits));
  if (mask_token_id < 0) raise(op, "mask_token_id", "a token id", std::to_string(mask_token_id));
  TensorCheck(op, "tokens", tokens)
      .same_device(logits)
      .dtype(ScalarType::Long)
      .shape({batch, positions})
      .last_contiguous()
      .writable();
  TensorCheck(op, "keep", keep).same_device(logits).dtype(ScalarType::Int).shape({batch});
  if (confidence) {
    TensorCheck(op, "confidence", *confidence)
        .same_device(logits)
        .dtype(ScalarType::Float)
        .shape({batch, positions})
        .last_contiguous()
        .writable();
  }
  check_separate(op, {{"tokens", tokens}, {"confidence", confidence}}, {{"logits", logits}, {"keep", keep}});
  RemaskParams params{};
  params.logits = logits.data_ptr();
  params.dtype = dtype_of(logits);
  params.batch = batch;
  params.positions = positions;
  params.vocabulary = vocabulary;
  params.logits_batch_stride = logits.stride(0);
  params.logits_row_stride = logits.stride(1);
  params.tokens = static_cast<int64_t*>(tokens.data_ptr());
  params.tokens_stride = tokens.stride(0);
  params.mask_token_id = mask_token_id;
  params.keep = static_cast<const int32_t*>(keep.data_ptr());
  params.keep_stride = keep.stride(0);
  params.confidence = confidence ? static_cast<float*>(confidence->data_ptr()) : nullptr;
  params.confidence_stride = confidence ? confidence->stride(0) : 0;
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, logits);
    void* memory = checked_arrivals(op, workspace, logits, batch, cuda::remask_workspace_bytes(batch, positions));
    cuda_launch(op, logits, cuda::plan_remask(params, memory, device));
  } else {
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t count = params.keep[i * params.keep_stride];
      if (count < 0) raise(op, "keep[" + std::to_string(i) + "]", "0 or more", std::to_string(count));
    }
    cpu::remask(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(remask)
