#include "cuda/common/entries.h"
#include "cuda/row_argmax/kernel.cuh"

using namespace dflash;
using cuda::RowArgmaxLaunch;

#define ENTRY(name, T)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(cuda::kArgmaxThreads) name(const __grid_constant__ RowArgmaxLaunch l) { \
    cuda::row_argmax<T>(l);                                                                                            \
  }
ENTRY(row_argmax_float32, float)
ENTRY(row_argmax_float16, Float16)
ENTRY(row_argmax_bfloat16, BFloat16)

static const cuda::EntryTable entries("row_argmax", {DFLASH_ENTRY(row_argmax_float32), DFLASH_ENTRY(row_argmax_float16),
                                                     DFLASH_ENTRY(row_argmax_bfloat16)});
