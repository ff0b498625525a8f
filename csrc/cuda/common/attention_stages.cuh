// Key tiles on their way to shared memory: a group of asynchronous copies each, `stages` tiles at a time.
#pragma once
#include "cuda/common/ptx.cuh"

namespace dflash::cuda {

// Until all but the latest `stages - 2` key tiles have landed.
__device__ __forceinline__ void wait_for_tile(uint32_t stages) {
  switch (stages) {
    case 2:
      return wait_for_copy_groups<0>();
    case 3:
      return wait_for_copy_groups<1>();
    case 4:
      return wait_for_copy_groups<2>();
    default:
      return wait_for_copy_groups<3>();  // the most that the plan's table has is five
  }
}

}  // namespace dflash::cuda
