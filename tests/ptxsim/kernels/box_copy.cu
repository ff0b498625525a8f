// Fetches one box of rows of heads by TMA and stores it as it lies in shared memory, for tests/cuda/test_tensor_map.py.
// The BUG_ macros plant faults.
#include "cuda/common/bulk_copy.cuh"

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
    dflash::cuda::prefetch_tensor_map(launch.map);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#ifdef BUG_FEW_BYTES
    dflash::cuda::arrive_expecting_bytes(barrier, kBoxBytes / 2);
#else
    dflash::cuda::arrive_expecting_bytes(barrier, kBoxBytes);
#endif
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(box));
    dflash::cuda::copy_box(to, launch.map, launch.channel, launch.head, launch.row, barrier);
  }
  __syncthreads();
#ifndef BUG_NO_WAIT
  asm volatile(
      "{\n.reg .pred complete;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], 0;\n"
      "@!complete bra WAIT;\n}" ::"r"(barrier)
      : "memory");
#endif
  launch.out[threadIdx.x] = box[threadIdx.x];
}
