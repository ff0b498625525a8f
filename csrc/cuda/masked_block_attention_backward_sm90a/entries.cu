#include "cuda/common/entries.h"
#include "cuda/masked_block_attention_backward_sm90a/keys.cuh"
#include "cuda/masked_block_attention_backward_sm90a/queries.cuh"

using namespace dflash;
using cuda::MaskedBackwardLaunch;
using cuda::WarpgroupBackwardTraits;

#define ENTRY(name, threads, function, ...)                       \
  extern "C" __global__ void __launch_bounds__(cuda::threads, 1)  \
      name(const __grid_constant__ MaskedBackwardLaunch launch) { \
    cuda::function<WarpgroupBackwardTraits<__VA_ARGS__>>(launch); \
  }
// Sums of splits have no warpgroup that copies.
#define ENTRIES(suffix, ...)                                                                                           \
  ENTRY(masked_backward_keys_sm90a_##suffix, kWarpgroupBackwardThreads, differentiate_keys_by_warpgroups, __VA_ARGS__) \
  ENTRY(masked_backward_queries_sm90a_##suffix, kWarpgroupBackwardThreads, differentiate_queries_by_warpgroups,        \
        __VA_ARGS__)                                                                                                   \
  ENTRY(masked_backward_sum_sm90a_##suffix, kWarpgroupBackwardOwners, sum_splits, __VA_ARGS__, 0)
ENTRIES(float16_64, Float16, 64)
ENTRIES(float16_128, Float16, 128)
ENTRIES(bfloat16_64, BFloat16, 64)
ENTRIES(bfloat16_128, BFloat16, 128)

static const cuda::EntryTable entries(
    "",
    {DFLASH_ENTRY(masked_backward_keys_sm90a_float16_64), DFLASH_ENTRY(masked_backward_queries_sm90a_float16_64),
     DFLASH_ENTRY(masked_backward_sum_sm90a_float16_64), DFLASH_ENTRY(masked_backward_keys_sm90a_float16_128),
     DFLASH_ENTRY(masked_backward_queries_sm90a_float16_128), DFLASH_ENTRY(masked_backward_sum_sm90a_float16_128),
     DFLASH_ENTRY(masked_backward_keys_sm90a_bfloat16_64), DFLASH_ENTRY(masked_backward_queries_sm90a_bfloat16_64),
     DFLASH_ENTRY(masked_backward_sum_sm90a_bfloat16_64), DFLASH_ENTRY(masked_backward_keys_sm90a_bfloat16_128),
     DFLASH_ENTRY(masked_backward_queries_sm90a_bfloat16_128), DFLASH_ENTRY(masked_backward_sum_sm90a_bfloat16_128)});
