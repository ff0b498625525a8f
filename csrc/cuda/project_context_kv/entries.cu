#include "cuda/common/entries.h"
#include "cuda/project_context_kv/kernel.cuh"

using namespace dflash;
using cuda::ProjectContextKvLaunch;
using cuda::WriteContextKvLaunch;

#define ENTRY(name, T)                                                                    \
  extern "C" __global__ void __launch_bounds__(cuda::kStreamThreads, cuda::kStreamBlocks) \
      name(const __grid_constant__ ProjectContextKvLaunch launch) {                       \
    cuda::project_context_kv<T>(launch);                                                  \
  }
#define WRITE_ENTRY(name, Access)                                                           \
  extern "C" __global__ void __launch_bounds__(cuda::kContextThreads, cuda::kContextBlocks) \
      name(const __grid_constant__ WriteContextKvLaunch launch) {                           \
    cuda::write_context_kv<cuda::BiasedAccess<cuda::Access>>(launch);                       \
  }
ENTRY(project_context_kv_float16, Float16)
ENTRY(project_context_kv_bfloat16, BFloat16)
WRITE_ENTRY(write_products, FloatAccess)
WRITE_ENTRY(write_products_unaligned, ElementAccess)

static const cuda::EntryTable entries("project_context_kv",
                                      {DFLASH_ENTRY(project_context_kv_float16),
                                       DFLASH_ENTRY(project_context_kv_bfloat16), DFLASH_ENTRY(write_products),
                                       DFLASH_ENTRY(write_products_unaligned)});
