// Ops whose plans leave products to torch's GEMM (plan/cuda/op_step.h).
#pragma once
#include <vector>

#include "bindings/checks.h"
#include "plan/cuda/op_step.h"

namespace dflash::bindings {

// Puts the steps on torch's current stream of the tensor's device, one after another.
void run_steps(const char* op, const Tensor& tensor, const std::vector<cuda::OpStep>& steps);

}  // namespace dflash::bindings
