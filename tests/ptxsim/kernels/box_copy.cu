// Fetches one box of rows of heads by TMA and stores it as it lies in shared memory, for tests/cuda/test_tensor_map.py.
// The BUG_ macros plant faults.
#include "cuda/common/bulk_copy.cuh"
#include "cuda/common/warpgroup.cuh"

using namespace dflash::cuda;

constexpr int kBoxRows = 16;
constexpr uint32_t kBoxBytes = kBoxRows * 128;

struct BoxCopyLaunch {
  uint4* out;  // [kBoxRows, 8]
  int32_t channel, head, row;
  dflash::TensorMap map;
};

extern "C" __global__ void __launch_bounds__(128) box_copy(const __grid_constant__ BoxCopyLaunch launch) {
  __shared__ __align__(1024) uint4 box[kBoxBytes / sizeof(uint4)];
  __shared__ __align__(8) uint64_t arrived;
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&arrived));
  if (threadIdx.x == 0) {
    prefetch_tensor_map(launch.map);
    init_barrier(barrier, 1);
    publish_barriers();
#ifdef BUG_FEW_BYTES
    arrive_expecting_bytes(barrier, kBoxBytes / 2);
#else
    arrive_expecting_bytes(barrier, kBoxBytes);
#endif
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(box));
    copy_box(to, launch.map, launch.channel, launch.head, launch.row, barrier);
  }
  __syncthreads();
#ifndef BUG_NO_WAIT
  wait_for_phase(barrier, 0);
#endif
  launch.out[threadIdx.x] = box[threadIdx.x];
}
