#include "cuda/common/entries.h"
#include "cuda/lm_head_argmax/kernel.cuh"

using namespace dflash;
using cuda::LmHeadArgmaxLaunch;

#define ENTRY(name, T)                                                                    \
  extern "C" __global__ void __launch_bounds__(cuda::kStreamThreads, cuda::kStreamBlocks) \
      name(const __grid_constant__ LmHeadArgmaxLaunch launch) {                           \
    cuda::lm_head_argmax<T>(launch);                                                      \
  }
ENTRY(lm_head_argmax_float16, Float16)
ENTRY(lm_head_argmax_bfloat16, BFloat16)

static const cuda::EntryTable entries("lm_head_argmax",
                                      {DFLASH_ENTRY(lm_head_argmax_float16), DFLASH_ENTRY(lm_head_argmax_bfloat16)});
