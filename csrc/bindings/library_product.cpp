#include "bindings/library_product.h"

#include <torch/csrc/stable/ops.h>

#include <array>

#include "bindings/cuda_backend.h"

namespace dflash::bindings {
namespace {

ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return ScalarType::Half;
    case DType::kBFloat16:
      return ScalarType::BFloat16;
    default:
      return ScalarType::Float;
  }
}

// aten::mm.dtype_out, which only CUDA has: half factors, a float32 product.
void multiply(const Tensor& tensor, const cuda::LibraryProduct& product) {
  const auto matrix = [&](const void* data, DType dtype, int64_t rows, int64_t columns, int64_t row_stride,
                          int64_t column_stride) {
    return torch::stable::from_blob(const_cast<void*>(data), {rows, columns}, {row_stride, column_stride},
                                    tensor.device(), scalar_type(dtype));
  };
  const Tensor activations =
      matrix(product.activations, product.dtype, product.rows, product.inner, product.activations_stride, 1);
  const Tensor transposed =
      matrix(product.weight, product.dtype, product.inner, product.columns, 1, product.weight_stride);
  const Tensor out = matrix(product.out, DType::kFloat32, product.rows, product.columns, product.out_stride, 1);
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(activations), from(transposed), from(ScalarType::Float), from(out)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "dtype_out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes over the handle of the result, which is `out`
}

}  // namespace

void run_steps(const char* op, const Tensor& tensor, const std::vector<cuda::OpStep>& steps) {
  for (const cuda::OpStep& step : steps) {
    for (const cuda::LibraryProduct& product : step.products) multiply(tensor, product);
    cuda_launch(op, tensor, step.launch);
  }
}

}  // namespace dflash::bindings
