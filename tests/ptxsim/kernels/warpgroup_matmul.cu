// C = A B^T for bf16 A [m, k], B [n, k] and f32 C [m, n] as Hopper kernels do it: one warpgroup's thread fetches tiles
// by TMA into a ring of stages, the other warpgroup multiplies them with wgmma and stores its tile by TMA. The BUG_
// macros plant faults for the tests.
#include <cuda_bf16.h>

#include <cstdint>

constexpr int kTile = 64;  // of m, n and k: rows of 128 bytes, which the 128-byte swizzle permutes
constexpr int kStages = 2;
constexpr uint32_t kTileBytes = kTile * kTile * 2;

struct alignas(64) TensorMap {
  char bytes[128];
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred complete;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra WAIT;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void load_tile(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// K-major with the 128-byte swizzle: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
#ifdef BUG_NO_SWIZZLE
  const uint64_t swizzle = 0;
#else
  const uint64_t swizzle = 1;
#endif
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | swizzle << 62;
}

#define FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
__device__ __forceinline__ void multiply(float (&c)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, "
      "0, "
      "0;"
      : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28)
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(256)
    warpgroup_matmul(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const __grid_constant__ TensorMap c_map, int k) {
  extern __shared__ __align__(1024) uint8_t tiles[];  // stages of A and B, then C
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  const uint32_t shared = shared_address(tiles);
  const uint32_t full = shared_address(barriers);
  const uint32_t empty = full + 8 * kStages;
  const int row = static_cast<int>(blockIdx.x) * kTile;
  const int column = static_cast<int>(blockIdx.y) * kTile;
  const int steps = (k + kTile - 1) / kTile;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * stage) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(empty + 8 * stage) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0) return;
    for (int step = 0; step < steps; ++step) {
      const uint32_t stage = step % kStages;
      const uint32_t parity = step / kStages & 1;
#ifndef BUG_NO_EMPTY_WAIT
      wait(empty + 8 * stage, parity ^ 1);
#endif
#ifdef BUG_FEW_BYTES
      const uint32_t bytes = kTileBytes;
#else
      const uint32_t bytes = 2 * kTileBytes;
#endif
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * stage), "r"(bytes)
                   : "memory");
      load_tile(shared + stage * 2 * kTileBytes, a, step * kTile, row, full + 8 * stage);
      load_tile(shared + (stage * 2 + 1) * kTileBytes, b, step * kTile, column, full + 8 * stage);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float c[32];
#pragma unroll
  for (float& value : c) value = 0.0f;
  for (int step = 0; step < steps; ++step) {
    const uint32_t stage = step % kStages;
#ifdef BUG_WRONG_PHASE
    const uint32_t parity = 0;
#else
    const uint32_t parity = step / kStages & 1;
#endif
#ifndef BUG_NO_FULL_WAIT
    wait(full + 8 * stage, parity);
#endif
#ifndef BUG_NO_WGMMA_FENCE
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    const uint32_t tile_a = shared + stage * 2 * kTileBytes;
#pragma unroll
    for (int part = 0; part < kTile / 16; ++part) {
      multiply(c, descriptor(tile_a + part * 32), descriptor(tile_a + kTileBytes + part * 32));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef BUG_EARLY_RELEASE
    arrive(empty + 8 * stage);
#endif
#ifndef BUG_NO_WGMMA_WAIT
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
#ifndef BUG_EARLY_RELEASE
    arrive(empty + 8 * stage);
#endif
  }
  const int lane = threadIdx.x % 32;
  float* out = reinterpret_cast<float*>(tiles + kStages * 2 * kTileBytes);
  float* first = out + ((threadIdx.x - 128) / 32 * 16 + lane / 4) * kTile + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    *reinterpret_cast<float2*>(first + i * 2) = make_float2(c[i], c[i + 1]);
    *reinterpret_cast<float2*>(first + i * 2 + 8 * kTile) = make_float2(c[i + 2], c[i + 3]);
  }
#ifndef BUG_NO_PROXY_FENCE
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#ifndef BUG_NO_EPILOGUE_BARRIER
  asm volatile("bar.sync 1, 128;" ::: "memory");
#endif
  if (threadIdx.x == 128) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&c_map),
                 "r"(column), "r"(row), "r"(shared_address(out))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#ifndef BUG_NO_STORE_WAIT
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
  }
}
