#include "cuda/common/entries.h"
#include "cuda/masked_block_attention/tiles.cuh"

using namespace dflash;
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

static const cuda::EntryTable entries("masked_block_attention", {DFLASH_ENTRY(masked_block_attention_order),
                                                                 DFLASH_ENTRY(masked_block_attention_row_tiles),
                                                                 DFLASH_ENTRY(masked_block_attention_key_tiles),
                                                                 DFLASH_ENTRY(masked_block_attention_schedule)});
