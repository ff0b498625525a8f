// The binding's call of torch's GEMM as an op of its own, for test_library_product.py: the product of two matrices on
// the CPU, without a launch after it.
#include "bindings/library_product.cpp"

namespace dflash::bindings {

void cuda_launch(const char*, const Tensor&, const LaunchPlan&) {}

DType dtype_of(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Half       ? DType::kFloat16
         : tensor.scalar_type() == ScalarType::BFloat16 ? DType::kBFloat16
                                                        : DType::kFloat32;
}

void multiply_alone(const Tensor& activations, const Tensor& weight, const Tensor& out) {
  const cuda::LibraryProduct product{activations.data_ptr(), weight.data_ptr(), static_cast<float*>(out.data_ptr()),
                                     activations.size(0),    weight.size(0),    activations.size(1),
                                     activations.stride(0),  weight.stride(0),  out.stride(0),
                                     dtype_of(activations)};
  run_steps("multiply_alone", activations, {cuda::OpStep{{product}, LaunchPlan{}}});
}

}  // namespace dflash::bindings

STABLE_TORCH_LIBRARY(dflash_ops_tests, m) {
  m.def("multiply_alone(Tensor activations, Tensor weight, Tensor(a!) out) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(dflash_ops_tests, CPU, m) {
  m.impl("multiply_alone", TORCH_BOX(&dflash::bindings::multiply_alone));
}
