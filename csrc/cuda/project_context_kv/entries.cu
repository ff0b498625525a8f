#include "cuda/common/entries.h"
#include "cuda/project_context_kv/kernel.cuh"

using namespace dflash;
using cuda::ProjectContextKvLaunch;

#define ENTRY(name, T)                                                                    \
  extern "C" __global__ void __launch_bounds__(cuda::kStreamThreads, cuda::kStreamBlocks) \
      name(const __grid_constant__ ProjectContextKvLaunch launch) {                       \
    cuda::project_context_kv<T>(launch);                                                  \
  }
ENTRY(project_context_kv_float16, Float16)
ENTRY(project_context_kv_bfloat16, BFloat16)

static const cuda::EntryTable entries("project_context_kv", {DFLASH_ENTRY(project_context_kv_float16),
                                                             DFLASH_ENTRY(project_context_kv_bfloat16)});
