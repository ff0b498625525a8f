#include "cuda/common/entries.h"
#include "cuda/masked_block_attention_backward/keys.cuh"
#include "cuda/masked_block_attention_backward/queries.cuh"
#include "cuda/masked_block_attention_backward/terms.cuh"

using namespace dflash;
using cuda::MaskedBackwardLaunch;
using cuda::MaskedBackwardTraits;

#define ENTRY(name, function, ...)                                           \
  extern "C" __global__ void __launch_bounds__(cuda::kMaskedBackwardThreads) \
      name(const __grid_constant__ MaskedBackwardLaunch launch) {            \
    cuda::function<MaskedBackwardTraits<__VA_ARGS__>>(launch);               \
  }
#define ENTRIES(suffix, ...)                                                  \
  ENTRY(masked_backward_terms_##suffix, find_terms, __VA_ARGS__)              \
  ENTRY(masked_backward_keys_##suffix, differentiate_keys, __VA_ARGS__)       \
  ENTRY(masked_backward_queries_##suffix, differentiate_queries, __VA_ARGS__) \
  ENTRY(masked_backward_sum_##suffix, sum_splits, __VA_ARGS__)
ENTRIES(float16_64, Float16, 64)
ENTRIES(float16_128, Float16, 128)
ENTRIES(bfloat16_64, BFloat16, 64)
ENTRIES(bfloat16_128, BFloat16, 128)

static const cuda::EntryTable entries(
    "masked_block_attention_backward",
    {DFLASH_ENTRY(masked_backward_terms_float16_64), DFLASH_ENTRY(masked_backward_keys_float16_64),
     DFLASH_ENTRY(masked_backward_queries_float16_64), DFLASH_ENTRY(masked_backward_sum_float16_64),
     DFLASH_ENTRY(masked_backward_terms_float16_128), DFLASH_ENTRY(masked_backward_keys_float16_128),
     DFLASH_ENTRY(masked_backward_queries_float16_128), DFLASH_ENTRY(masked_backward_sum_float16_128),
     DFLASH_ENTRY(masked_backward_terms_bfloat16_64), DFLASH_ENTRY(masked_backward_keys_bfloat16_64),
     DFLASH_ENTRY(masked_backward_queries_bfloat16_64), DFLASH_ENTRY(masked_backward_sum_bfloat16_64),
     DFLASH_ENTRY(masked_backward_terms_bfloat16_128), DFLASH_ENTRY(masked_backward_keys_bfloat16_128),
     DFLASH_ENTRY(masked_backward_queries_bfloat16_128), DFLASH_ENTRY(masked_backward_sum_bfloat16_128)});
