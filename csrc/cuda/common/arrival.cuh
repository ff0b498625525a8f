// Where blocks that share a result meet.
#pragma once
#include "cuda/common/ptx.cuh"

namespace dflash::cuda {

// True in all threads of the last of `blocks` blocks to get here; what thread 0 of the others wrote before (and what
// their other threads wrote before a barrier) is visible to it. Leaves the counter as it was found, so the next launch
// (or replay of a graph) needs no reset.
__device__ __forceinline__ bool last_to_arrive(uint32_t* counter, uint32_t blocks) {
  __shared__ bool last;
  if (threadIdx.x == 0) last = count_arrival(counter, blocks - 1) == blocks - 1;
  __syncthreads();
  return last;
}

}  // namespace dflash::cuda
