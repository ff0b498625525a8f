// What an op with products of many rows does, step by step: products by torch's GEMM, which only the binding can call,
// then a launch of ours.
#pragma once
#include <cstdint>
#include <vector>

#include "params/dtype.h"
#include "plan/launch.h"

namespace dflash::cuda {

// out = activations * weight^T, in float32. Strides count elements, from row to row; columns are contiguous.
struct LibraryProduct {
  const void* activations;  // [rows, inner]
  const void* weight;       // [columns, inner]
  float* out;               // [rows, columns]
  int64_t rows, columns, inner;
  int64_t activations_stride, weight_stride, out_stride;
  DType dtype;  // of activations and weight
};

struct OpStep {
  std::vector<LibraryProduct> products;
  LaunchPlan launch;
};

inline const void* advanced(const void* data, DType dtype, int64_t elements) {
  return static_cast<const unsigned char*>(data) + elements * dtype_size(dtype);
}

}  // namespace dflash::cuda
