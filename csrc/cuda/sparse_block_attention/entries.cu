#include "cuda/block_attention/kernel.cuh"
#include "cuda/common/entries.h"
#include "cuda/sparse_block_attention/selected_pages.cuh"

using namespace dflash;
using cuda::AttentionTraits;
using cuda::SparseBlockAttentionLaunch;

#define ENTRY(name, ...)                                                                                \
  extern "C" __global__ void __launch_bounds__(AttentionTraits<__VA_ARGS__>::kThreads)                  \
      name(const __grid_constant__ SparseBlockAttentionLaunch launch) {                                 \
    cuda::block_attention<AttentionTraits<__VA_ARGS__>>(launch.attention, cuda::SelectedPages(launch)); \
  }
ENTRY(sparse_block_attention_float16_64_64, Float16, 64, 64)
ENTRY(sparse_block_attention_float16_64_128, Float16, 64, 128)
ENTRY(sparse_block_attention_float16_96_64, Float16, 96, 64)
ENTRY(sparse_block_attention_float16_96_128, Float16, 96, 128)
ENTRY(sparse_block_attention_float16_128_64, Float16, 128, 64)
ENTRY(sparse_block_attention_float16_128_128, Float16, 128, 128)
ENTRY(sparse_block_attention_float16_256_64, Float16, 256, 64)
ENTRY(sparse_block_attention_float16_256_128, Float16, 256, 128)
ENTRY(sparse_block_attention_bfloat16_64_64, BFloat16, 64, 64)
ENTRY(sparse_block_attention_bfloat16_64_128, BFloat16, 64, 128)
ENTRY(sparse_block_attention_bfloat16_96_64, BFloat16, 96, 64)
ENTRY(sparse_block_attention_bfloat16_96_128, BFloat16, 96, 128)
ENTRY(sparse_block_attention_bfloat16_128_64, BFloat16, 128, 64)
ENTRY(sparse_block_attention_bfloat16_128_128, BFloat16, 128, 128)
ENTRY(sparse_block_attention_bfloat16_256_64, BFloat16, 256, 64)
ENTRY(sparse_block_attention_bfloat16_256_128, BFloat16, 256, 128)

static const cuda::EntryTable entries(
    "sparse_block_attention",
    {DFLASH_ENTRY(sparse_block_attention_float16_64_64), DFLASH_ENTRY(sparse_block_attention_float16_64_128),
     DFLASH_ENTRY(sparse_block_attention_float16_96_64), DFLASH_ENTRY(sparse_block_attention_float16_96_128),
     DFLASH_ENTRY(sparse_block_attention_float16_128_64), DFLASH_ENTRY(sparse_block_attention_float16_128_128),
     DFLASH_ENTRY(sparse_block_attention_float16_256_64), DFLASH_ENTRY(sparse_block_attention_float16_256_128),
     DFLASH_ENTRY(sparse_block_attention_bfloat16_64_64), DFLASH_ENTRY(sparse_block_attention_bfloat16_64_128),
     DFLASH_ENTRY(sparse_block_attention_bfloat16_96_64), DFLASH_ENTRY(sparse_block_attention_bfloat16_96_128),
     DFLASH_ENTRY(sparse_block_attention_bfloat16_128_64), DFLASH_ENTRY(sparse_block_attention_bfloat16_128_128),
     DFLASH_ENTRY(sparse_block_attention_bfloat16_256_64), DFLASH_ENTRY(sparse_block_attention_bfloat16_256_128)});
