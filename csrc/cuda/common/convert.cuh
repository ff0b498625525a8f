// Element types on the device: storage-only, every kernel computes in float32.
#pragma once
#include "cuda/common/ptx.cuh"
#include "params/dtype.h"

namespace dflash::cuda {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Float16 value) { return float_from_f16(value.bits); }
__device__ __forceinline__ float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

}  // namespace dflash::cuda
