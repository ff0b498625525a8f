#include "cuda/common/entries.h"
#include "cuda/masked_block_attention_sm90a/forward.cuh"

using namespace dflash;
using cuda::WarpgroupAttentionLaunch;
using cuda::WarpgroupTraits;

#define FORWARD_ENTRY(name, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(WarpgroupTraits<__VA_ARGS__>::kThreads, 1) \
      name(const __grid_constant__ WarpgroupAttentionLaunch launch) {                     \
    cuda::masked_block_attention_by_warpgroups<WarpgroupTraits<__VA_ARGS__>>(launch);     \
  }
FORWARD_ENTRY(masked_block_attention_sm90a_float16_64, Float16, 64)
FORWARD_ENTRY(masked_block_attention_sm90a_float16_128, Float16, 128)
FORWARD_ENTRY(masked_block_attention_sm90a_bfloat16_64, BFloat16, 64)
FORWARD_ENTRY(masked_block_attention_sm90a_bfloat16_128, BFloat16, 128)

static const cuda::EntryTable entries("", {DFLASH_ENTRY(masked_block_attention_sm90a_float16_64),
                                           DFLASH_ENTRY(masked_block_attention_sm90a_float16_128),
                                           DFLASH_ENTRY(masked_block_attention_sm90a_bfloat16_64),
                                           DFLASH_ENTRY(masked_block_attention_sm90a_bfloat16_128)});
