#include "cuda/common/entries.h"
#include "cuda/norm_rope_qkv/kernel.cuh"

using namespace dflash;
using cuda::ElementAccess;
using cuda::NormRopeQkvLaunch;
using cuda::VectorAccess;

#define ENTRY(name, ...)                                                                      \
  extern "C" __global__ void __launch_bounds__(cuda::kNormRopeThreads, cuda::kNormRopeBlocks) \
      name(const __grid_constant__ NormRopeQkvLaunch launch) {                                \
    cuda::norm_rope_qkv<__VA_ARGS__>(launch);                                                 \
  }
ENTRY(norm_rope_qkv_float32, VectorAccess<float, float>)
ENTRY(norm_rope_qkv_float16, VectorAccess<Float16, Float16>)
ENTRY(norm_rope_qkv_bfloat16, VectorAccess<BFloat16, BFloat16>)
ENTRY(norm_rope_qkv_unaligned, ElementAccess)

static const cuda::EntryTable entries("norm_rope_qkv",
                                      {DFLASH_ENTRY(norm_rope_qkv_float32), DFLASH_ENTRY(norm_rope_qkv_float16),
                                       DFLASH_ENTRY(norm_rope_qkv_bfloat16), DFLASH_ENTRY(norm_rope_qkv_unaligned)});
