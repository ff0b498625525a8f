#include "cuda/common/entries.h"
#include "cuda/update_page_bounds/kernel.cuh"

using namespace dflash;
using cuda::ElementAccess;
using cuda::UpdatePageBoundsLaunch;
using cuda::VectorAccess;

#define ENTRY(name, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__(cuda::kBoundsThreads, cuda::kBoundsBlocks) \
      name(const __grid_constant__ UpdatePageBoundsLaunch launch) {                       \
    cuda::update_page_bounds<__VA_ARGS__>(launch);                                        \
  }
ENTRY(update_page_bounds_float32, VectorAccess<float, float>)
ENTRY(update_page_bounds_float16, VectorAccess<Float16, Float16>)
ENTRY(update_page_bounds_bfloat16, VectorAccess<BFloat16, BFloat16>)
ENTRY(update_page_bounds_unaligned, ElementAccess)

static const cuda::EntryTable entries("update_page_bounds", {DFLASH_ENTRY(update_page_bounds_float32),
                                                             DFLASH_ENTRY(update_page_bounds_float16),
                                                             DFLASH_ENTRY(update_page_bounds_bfloat16),
                                                             DFLASH_ENTRY(update_page_bounds_unaligned)});
