#include "cuda/begin_block/kernel.cuh"
#include "cuda/common/entries.h"

extern "C" __global__ void begin_block(const __grid_constant__ dflash::BeginBlockParams params) {
  dflash::cuda::begin_block(params);
}

static const dflash::cuda::EntryTable entries("begin_block", {DFLASH_ENTRY(begin_block)});
