// Thin wrappers of the PTX instructions that fetch boxes of tensors by TMA (sm_90 and up). Each names its section of
// the PTX ISA manual (9.0) by title, as in ptx.cuh. `barrier` is the shared-memory address of an mbarrier.
#pragma once
#include <cstdint>

#include "plan/tensor_map.h"

namespace dflash::cuda {

// "Data Movement and Conversion Instructions: cp.async.bulk.tensor". Starts the copy of the box whose first element has
// these coordinates; any may lie outside of the tensor, before it too. The box's bytes, with the zeros of what lies
// outside, count as transactions of `barrier` when they have landed at `to`. For one thread. `to` is the shared-memory
// address of the box, its channels innermost, then its heads, then its rows; a multiple of 1024, so that the 128-byte
// swizzle starts with the box. `map` lies within a __grid_constant__ parameter.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap& map, int32_t channel, int32_t head, int32_t row,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(channel), "r"(head), "r"(row), "r"(barrier)
      : "memory");
}

// "Parallel Synchronization and Communication Instructions: mbarrier.arrive", with .expect_tx: the phase also waits for
// this many bytes of copies. Called before the copies are started, by the thread that starts them.
__device__ __forceinline__ void arrive_expecting_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// "Data Movement and Conversion Instructions: prefetch", of a tensor map: the first copy then need not wait for it.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace dflash::cuda
