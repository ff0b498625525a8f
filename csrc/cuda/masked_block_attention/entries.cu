#include "cuda/common/entries.h"
#include "cuda/masked_block_attention/forward.cuh"
#include "cuda/masked_block_attention/tiles.cuh"

using namespace dflash;
using cuda::MaskedAttentionLaunch;
using cuda::MaskedTraits;
using cuda::MaskTilesLaunch;

#define TILES_ENTRY(name, function)                                    \
  extern "C" __global__ void __launch_bounds__(cuda::kMaskTileThreads) \
      name(const __grid_constant__ MaskTilesLaunch launch) {           \
    cuda::function(launch);                                            \
  }
TILES_ENTRY(masked_block_attention_order, order_blocks)
TILES_ENTRY(masked_block_attention_row_tiles, describe_row_tile)
TILES_ENTRY(masked_block_attention_key_tiles, describe_key_tile)
TILES_ENTRY(masked_block_attention_schedule, schedule_tiles)

#define FORWARD_ENTRY(name, ...)                                                    \
  extern "C" __global__ void __launch_bounds__(MaskedTraits<__VA_ARGS__>::kThreads) \
      name(const __grid_constant__ MaskedAttentionLaunch launch) {                  \
    cuda::masked_block_attention<MaskedTraits<__VA_ARGS__>>(launch);                \
  }
FORWARD_ENTRY(masked_block_attention_float16_64, Float16, 64)
FORWARD_ENTRY(masked_block_attention_float16_128, Float16, 128)
FORWARD_ENTRY(masked_block_attention_bfloat16_64, BFloat16, 64)
FORWARD_ENTRY(masked_block_attention_bfloat16_128, BFloat16, 128)

static const cuda::EntryTable entries(
    "masked_block_attention",
    {DFLASH_ENTRY(masked_block_attention_order), DFLASH_ENTRY(masked_block_attention_row_tiles),
     DFLASH_ENTRY(masked_block_attention_key_tiles), DFLASH_ENTRY(masked_block_attention_schedule),
     DFLASH_ENTRY(masked_block_attention_float16_64), DFLASH_ENTRY(masked_block_attention_float16_128),
     DFLASH_ENTRY(masked_block_attention_bfloat16_64), DFLASH_ENTRY(masked_block_attention_bfloat16_128)});
// The op's out-variant, by the same kernels.
static const cuda::EntryTable forward("masked_block_attention_forward", {});
