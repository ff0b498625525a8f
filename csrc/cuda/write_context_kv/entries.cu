#include "cuda/common/entries.h"
#include "cuda/write_context_kv/kernel.cuh"

using namespace dflash;
using cuda::ElementAccess;
using cuda::VectorAccess;
using cuda::WriteContextKvLaunch;

#define ENTRY(name, ...)                                                                    \
  extern "C" __global__ void __launch_bounds__(cuda::kContextThreads, cuda::kContextBlocks) \
      name(const __grid_constant__ WriteContextKvLaunch launch) {                           \
    cuda::write_context_kv<__VA_ARGS__>(launch);                                            \
  }
ENTRY(write_context_kv_float32_float32, VectorAccess<float, float>)
ENTRY(write_context_kv_float32_float16, VectorAccess<float, Float16>)
ENTRY(write_context_kv_float32_bfloat16, VectorAccess<float, BFloat16>)
ENTRY(write_context_kv_float16_float32, VectorAccess<Float16, float>)
ENTRY(write_context_kv_float16_float16, VectorAccess<Float16, Float16>)
ENTRY(write_context_kv_float16_bfloat16, VectorAccess<Float16, BFloat16>)
ENTRY(write_context_kv_bfloat16_float32, VectorAccess<BFloat16, float>)
ENTRY(write_context_kv_bfloat16_float16, VectorAccess<BFloat16, Float16>)
ENTRY(write_context_kv_bfloat16_bfloat16, VectorAccess<BFloat16, BFloat16>)
ENTRY(write_context_kv_unaligned, ElementAccess)

static const cuda::EntryTable entries(
    "write_context_kv",
    {DFLASH_ENTRY(write_context_kv_float32_float32), DFLASH_ENTRY(write_context_kv_float32_float16),
     DFLASH_ENTRY(write_context_kv_float32_bfloat16), DFLASH_ENTRY(write_context_kv_float16_float32),
     DFLASH_ENTRY(write_context_kv_float16_float16), DFLASH_ENTRY(write_context_kv_float16_bfloat16),
     DFLASH_ENTRY(write_context_kv_bfloat16_float32), DFLASH_ENTRY(write_context_kv_bfloat16_float16),
     DFLASH_ENTRY(write_context_kv_bfloat16_bfloat16), DFLASH_ENTRY(write_context_kv_unaligned)});
