#include "cuda/common/entries.h"
#include "cuda/select_pages/kernel.cuh"

using namespace dflash;
using cuda::AttentionTraits;
using cuda::SelectPagesLaunch;

// One block a multiprocessor is said only so that ptxas takes the registers it needs instead of spilling some to fit
// more blocks than shared memory has room for.
#define ENTRY(name, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__(AttentionTraits<__VA_ARGS__>::kThreads, 1) \
      name(const __grid_constant__ SelectPagesLaunch launch) {                            \
    cuda::select_pages<AttentionTraits<__VA_ARGS__>>(launch);                             \
  }
ENTRY(select_pages_float16_64_64, Float16, 64, 64)
ENTRY(select_pages_float16_64_128, Float16, 64, 128)
ENTRY(select_pages_float16_96_64, Float16, 96, 64)
ENTRY(select_pages_float16_96_128, Float16, 96, 128)
ENTRY(select_pages_float16_128_64, Float16, 128, 64)
ENTRY(select_pages_float16_128_128, Float16, 128, 128)
ENTRY(select_pages_float16_256_64, Float16, 256, 64)
ENTRY(select_pages_float16_256_128, Float16, 256, 128)
ENTRY(select_pages_bfloat16_64_64, BFloat16, 64, 64)
ENTRY(select_pages_bfloat16_64_128, BFloat16, 64, 128)
ENTRY(select_pages_bfloat16_96_64, BFloat16, 96, 64)
ENTRY(select_pages_bfloat16_96_128, BFloat16, 96, 128)
ENTRY(select_pages_bfloat16_128_64, BFloat16, 128, 64)
ENTRY(select_pages_bfloat16_128_128, BFloat16, 128, 128)
ENTRY(select_pages_bfloat16_256_64, BFloat16, 256, 64)
ENTRY(select_pages_bfloat16_256_128, BFloat16, 256, 128)

static const cuda::EntryTable entries(
    "select_pages", {DFLASH_ENTRY(select_pages_float16_64_64), DFLASH_ENTRY(select_pages_float16_64_128),
                     DFLASH_ENTRY(select_pages_float16_96_64), DFLASH_ENTRY(select_pages_float16_96_128),
                     DFLASH_ENTRY(select_pages_float16_128_64), DFLASH_ENTRY(select_pages_float16_128_128),
                     DFLASH_ENTRY(select_pages_float16_256_64), DFLASH_ENTRY(select_pages_float16_256_128),
                     DFLASH_ENTRY(select_pages_bfloat16_64_64), DFLASH_ENTRY(select_pages_bfloat16_64_128),
                     DFLASH_ENTRY(select_pages_bfloat16_96_64), DFLASH_ENTRY(select_pages_bfloat16_96_128),
                     DFLASH_ENTRY(select_pages_bfloat16_128_64), DFLASH_ENTRY(select_pages_bfloat16_128_128),
                     DFLASH_ENTRY(select_pages_bfloat16_256_64), DFLASH_ENTRY(select_pages_bfloat16_256_128)});
