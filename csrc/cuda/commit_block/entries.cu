#include "cuda/commit_block/kernel.cuh"
#include "cuda/common/entries.h"

extern "C" __global__ void commit_block(const __grid_constant__ dflash::CommitBlockParams params) {
  dflash::cuda::commit_block(params);
}

static const dflash::cuda::EntryTable entries("commit_block", {DFLASH_ENTRY(commit_block)});
