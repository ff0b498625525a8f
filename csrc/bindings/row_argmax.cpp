#include "cpu/row_argmax.h"

#include "bindings/cuda_backend.h"
#include "plan/cuda/row_argmax.h"

namespace dflash::bindings {

template <Backend backend>
void row_argmax(const Tensor& logits, const Tensor& ids, const OptionalTensor& values,
                const OptionalTensor& workspace) {
  constexpr const char* op = "row_argmax";
  TensorCheck(op, "logits", logits).dim(2).floating().last_contiguous();
  const int64_t rows = logits.size(0);
  const int64_t columns = logits.size(1);
  TensorCheck(op, "logits", logits).expect(rows == 0 || columns > 0, "at least one column", to_string(logits));
  TensorCheck(op, "ids", ids).same_device(logits).dtype(ScalarType::Long).shape({rows}).writable();
  if (values) {
    TensorCheck(op, "values", *values).same_device(logits).dtype(ScalarType::Float).shape({rows}).writable();
  }
  check_separate(op, {{"ids", ids}, {"values", values}}, {{"logits", logits}});
  RowArgmaxParams params{};
  params.logits = logits.data_ptr();
  params.dtype = dtype_of(logits);
  params.rows = rows;
  params.columns = columns;
  params.row_stride = logits.stride(0);
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.ids_stride = ids.stride(0);
  params.values = values ? static_cast<float*>(values->data_ptr()) : nullptr;
  params.values_stride = values ? values->stride(0) : 0;
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(op, logits);
    void* memory = checked_arrivals(op, workspace, logits, 0, cuda::argmax_rows_workspace_bytes(rows));
    cuda_launch(op, logits, cuda::plan_row_argmax(params, memory, device));
  } else {
    cpu::row_argmax(params);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(row_argmax)
