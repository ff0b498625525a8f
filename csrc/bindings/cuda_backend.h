// The way from an op to its CUDA kernel: `_cuda.so`, beside this library, is opened at the first call on a CUDA tensor.
// It is a library of its own so that everything else builds, loads and runs where there is no nvcc.
#pragma once
#include "bindings/checks.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::bindings {

// The GPU that holds `tensor`, for the op's plan. Raises where the CUDA library is not built or has no kernel for `op`
// (raise_no_cuda_kernel), where `tensor` is not on a GPU, and where the GPU cannot be used.
const DeviceProperties& cuda_device(const char* op, const Tensor& tensor);

// The op's workspace, which begins with arrival counters (plan/cuda/workspace.h): on the tensor's device, at least
// `bytes`. `requests` have a counter each.
void* checked_arrivals(const char* op, const OptionalTensor& workspace, const Tensor& tensor, int64_t requests,
                       int64_t bytes);

// Puts the plan's kernel on torch's current stream of the tensor's device; errors name the op.
void cuda_launch(const char* op, const Tensor& tensor, const LaunchPlan& plan);

}  // namespace dflash::bindings
