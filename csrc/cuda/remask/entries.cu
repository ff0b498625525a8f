#include "cuda/common/entries.h"
#include "cuda/remask/kernel.cuh"

using namespace dflash;
using cuda::RemaskLaunch;

#define ENTRY(name, T)                                               \
  extern "C" __global__ void __launch_bounds__(cuda::kArgmaxThreads) \
      name(const __grid_constant__ RemaskLaunch launch) {            \
    cuda::remask<T>(launch);                                         \
  }
ENTRY(remask_float32, float)
ENTRY(remask_float16, Float16)
ENTRY(remask_bfloat16, BFloat16)

static const cuda::EntryTable entries("remask", {DFLASH_ENTRY(remask_float32), DFLASH_ENTRY(remask_float16),
                                                 DFLASH_ENTRY(remask_bfloat16)});
