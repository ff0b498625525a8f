#include "cuda/common/entries.h"
#include "cuda/fuse_features/kernel.cuh"

using namespace dflash;
using cuda::FuseFeaturesLaunch;

#define PRODUCTS_ENTRY(name, T)                                                           \
  extern "C" __global__ void __launch_bounds__(cuda::kStreamThreads, cuda::kStreamBlocks) \
      name(const __grid_constant__ FuseFeaturesLaunch launch) {                           \
    cuda::fuse_features<T>(launch);                                                       \
  }
#define NORMALISE_ENTRY(name, T)                                        \
  extern "C" __global__ void __launch_bounds__(cuda::kNormaliseThreads) \
      name(const __grid_constant__ FuseFeaturesLaunch launch) {         \
    cuda::normalise_features<T>(launch);                                \
  }
PRODUCTS_ENTRY(fuse_features_float16, Float16)
PRODUCTS_ENTRY(fuse_features_bfloat16, BFloat16)
NORMALISE_ENTRY(normalise_features_float32, float)
NORMALISE_ENTRY(normalise_features_float16, Float16)
NORMALISE_ENTRY(normalise_features_bfloat16, BFloat16)

static const cuda::EntryTable entries("fuse_features",
                                      {DFLASH_ENTRY(fuse_features_float16), DFLASH_ENTRY(fuse_features_bfloat16),
                                       DFLASH_ENTRY(normalise_features_float32),
                                       DFLASH_ENTRY(normalise_features_float16),
                                       DFLASH_ENTRY(normalise_features_bfloat16)});
