#include "cpu/lm_head_argmax.h"

#include "bindings/context_checks.h"
#include "bindings/cuda_backend.h"
#include "plan/cuda/lm_head_argmax.h"
#include "plan/lm_head_argmax.h"

namespace dflash::bindings {

template <Backend backend>
void lm_head_argmax(const Tensor& hidden, const Tensor& weight, int64_t vocab_offset, double softcap, const Tensor& ids,
                    const OptionalTensor& values, const Tensor& workspace) {
  constexpr const char* op = "lm_head_argmax";
  TensorCheck(op, "hidden", hidden).dim(2).floating().last_contiguous();
  const int64_t rows = hidden.size(0), hidden_size = hidden.size(1);
  TensorCheck(op, "hidden", hidden).expect(hidden_size > 0, "at least one column", to_string(hidden));
  check_weight(op, "weight", weight, hidden, {-1, hidden_size});
  const int64_t vocab_size = weight.size(0);
  TensorCheck(op, "weight", weight).expect(rows == 0 || vocab_size > 0, "at least one row", to_string(weight));
  if (!(softcap >= 0)) raise(op, "softcap", "0 (none) or more", std::to_string(softcap));
  TensorCheck(op, "ids", ids).same_device(hidden).dtype(ScalarType::Long).shape({rows}).writable();
  if (values) {
    TensorCheck(op, "values", *values).same_device(hidden).dtype(ScalarType::Float).shape({rows}).writable();
  }
  TensorCheck(op, "workspace", workspace).same_device(hidden);

  check_separate(op, {{"ids", ids}, {"values", values}, {"workspace", workspace}},
                 {{"hidden", hidden}, {"weight", weight}});
  // The largest id fits 64 bits.
  if (vocab_offset > INT64_MAX - vocab_size) {
    raise(op, "vocab_offset", "at most 2^63 - 1 less the vocabulary", std::to_string(vocab_offset));
  }

  LmHeadArgmaxParams params{};
  params.gemm.activations = single_piece(hidden);
  params.gemm.weight = single_layer_weight(weight);
  params.gemm.dtype = dtype_of(hidden);
  params.vocab_offset = vocab_offset;
  params.softcap = static_cast<float>(softcap);
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.ids_stride = ids.stride(0);
  params.values = values ? static_cast<float*>(values->data_ptr()) : nullptr;
  params.values_stride = values ? values->stride(0) : 0;
  params.workspace = workspace.data_ptr();
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, hidden);
    TensorCheck(op, "hidden", hidden)
        .half_on_cuda()
        .expect(rows <= cuda::kMostHeadRows, "at most " + std::to_string(cuda::kMostHeadRows) + " rows on CUDA",
                to_string(hidden));
    TensorCheck(op, "workspace", workspace)
        .workspace(cuda::lm_head_argmax_workspace_bytes(rows, hidden_size, vocab_size));
    cuda_launch(op, hidden, cuda::plan_lm_head_argmax(params, device));
  } else {
    TensorCheck(op, "workspace", workspace).workspace(plan::lm_head_argmax_plan(rows, hidden_size, vocab_size).bytes);
    cpu::lm_head_argmax(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(lm_head_argmax)
