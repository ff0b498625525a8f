// Hopper's warpgroup products (wgmma) and the barriers in shared memory that go with them: thin wrappers of single PTX
// instructions, for sm_90a alone. Each names its section of the PTX ISA manual (9.0) by title.
//
// Sources in a folder csrc/cuda/<name>_sm90a are compiled for that architecture only.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cuda/common/reduce.cuh"
#include "params/dtype.h"

namespace dflash::cuda {

constexpr int kWarpgroupThreads = 128;

// ---- Barriers in shared memory: "Parallel Synchronization and Communication Instructions: mbarrier"

// `arrivals` complete a phase. One thread, then `publish_barriers`, then a barrier of the block.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// "fence.mbarrier_init": initialised barriers are seen by asynchronous copies too.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// A warp's arrival for what all of its lanes did before.
__device__ __forceinline__ void arrive_as_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % kWarpLanes == 0) arrive(barrier);
}
// Until the phase with this parity (0 for the first) is complete. The phase before the first counts as complete with
// parity 1.
__device__ __forceinline__ void wait_for_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A ring of stages: which one is next, and the parity of its barriers' phase.
struct RingPosition {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance(uint32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// "fence.proxy": what ordinary stores and cp.async wrote to shared memory before is seen by wgmma and bulk copies
// afterwards.
__device__ __forceinline__ void publish_to_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// "Miscellaneous Instructions: setmaxnreg", by all warps of a warpgroup. Multiples of 8 from 24 to 256.
template <int kRegisters>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Tiles: "Asynchronous Warpgroup Level Matrix Instructions", shared-memory matrix layout

// A tile of 64 rows of 64 or 128 16-bit channels: panels of 64 channels one behind the other, a row of a panel in 128
// bytes, whose 16-byte chunks change places as the 128-byte swizzle does. The tile lies on a multiple of 1,024 bytes.
constexpr int kTileRows = 64;
constexpr int kPanelChunks = 8, kPanelBytes = kTileRows * 128;

// Where a 16-byte chunk of a row lies; rows from 64 on are those of the next tile.
template <int kHeadDim>
__device__ __forceinline__ uint32_t place_in_panels(int row, int chunk) {
  constexpr int kTileBytes = kTileRows * kHeadDim * 2;
  const int of_tile = row % kTileRows;
  return row / kTileRows * kTileBytes + chunk / kPanelChunks * kPanelBytes + of_tile * 128 +
         ((chunk % kPanelChunks) ^ (of_tile % 8)) * 16;
}

// A descriptor's lower half, which says where the matrix starts and how far its panels lie apart, and its upper half:
// groups of 8 rows lie 1,024 bytes apart, swizzled by 128 bytes. All in units of 16 bytes, so that an offset within the
// tile is added.
constexpr uint32_t kUpperHalf = 1024 >> 4 | 1u << 30;
__device__ __forceinline__ uint64_t describe(uint32_t tile, uint32_t offset, uint32_t panels_apart) {
  const uint32_t of_tile = (tile & 0x3ffff) >> 4 | panels_apart >> 4 << 16;
  return uint64_t{kUpperHalf} << 32 | (of_tile + (offset >> 4));
}

// Rows of the tile are rows of a, or columns of b; 16 channels from block `dim_block` on are summed over. (They lie in
// one panel: its distance to the next is not used.)
__device__ __forceinline__ uint64_t rows_of_tile(uint32_t tile, int dim_block) {
  return describe(tile, dim_block / 4 * kPanelBytes + dim_block % 4 * 32, 16);
}
// Channels of the tile are columns of b; 16 rows from block `row_block` on are summed over.
__device__ __forceinline__ uint64_t channels_of_tile(uint32_t tile, int row_block) {
  return describe(tile, row_block * 16 * 128, kPanelBytes);
}

// ---- Products: "wgmma.mma_async"

// Registers of sums and of a are ready to be used by the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define DFLASH_QUAD(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define DFLASH_SUMS_64                                                                                            \
  DFLASH_QUAD(0), DFLASH_QUAD(1), DFLASH_QUAD(2), DFLASH_QUAD(3), DFLASH_QUAD(4), DFLASH_QUAD(5), DFLASH_QUAD(6), \
      DFLASH_QUAD(7)
#define DFLASH_SUMS_128                                                                                               \
  DFLASH_SUMS_64, DFLASH_QUAD(8), DFLASH_QUAD(9), DFLASH_QUAD(10), DFLASH_QUAD(11), DFLASH_QUAD(12), DFLASH_QUAD(13), \
      DFLASH_QUAD(14), DFLASH_QUAD(15)
#define DFLASH_NAMES_64                                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define DFLASH_NAMES_128                                                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63}"
// Until at most the latest kLeft closed groups are under way; sums of the others are named, so that no use of them is
// compiled in front of the wait.
template <int kLeft>
__device__ __forceinline__ void wait_for_products(float (&sums)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : DFLASH_SUMS_64 : "n"(kLeft) : "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_for_products(float (&sums)[16][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : DFLASH_SUMS_128 : "n"(kLeft) : "memory");
}

// The last numbers: the scales of a and b, then which operands in shared memory lie with their channels along m or n.
#define DFLASH_FROM_SHARED(columns, type, names, a, b, flag, scales)                               \
  asm volatile(                                                                                               \
      "{\n.reg .pred accumulate;\nsetp.ne.s32 accumulate, " flag ", 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " names ", " a ", " b            \
      ", accumulate, 1, 1" scales ";\n}"

// sums (64 x 64: a warp has 16 rows, laid out as mma leaves them) = or += a (64 rows of a tile) x b (64 rows of
// another) over 16 channels; a and b by rows_of_tile.
template <typename T>
__device__ __forceinline__ void multiply_tiles(float (&sums)[8][4], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<T, Float16>) {
    DFLASH_FROM_SHARED("64", "f16", DFLASH_NAMES_64, "%32", "%33", "%34", ", 0, 0")
        : DFLASH_SUMS_64
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  } else {
    DFLASH_FROM_SHARED("64", "bf16", DFLASH_NAMES_64, "%32", "%33", "%34", ", 0, 0")
        : DFLASH_SUMS_64
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
}

// The same with a in registers, as a of mma m16n8k16: a warp's 16 rows.
template <typename T>
__device__ __forceinline__ void multiply_tiles(float (&sums)[8][4], const uint32_t (&a)[4], uint64_t b,
                                               bool accumulate) {
  if constexpr (std::is_same_v<T, Float16>) {
    DFLASH_FROM_SHARED("64", "f16", DFLASH_NAMES_64, "{%32, %33, %34, %35}", "%36", "%37", ", 0")
        : DFLASH_SUMS_64
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
  } else {
    DFLASH_FROM_SHARED("64", "bf16", DFLASH_NAMES_64, "{%32, %33, %34, %35}", "%36", "%37", ", 0")
        : DFLASH_SUMS_64
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
  }
}

// sums (64 x 64 or 128 channels) += a (in registers, over 16 rows of a tile) x those rows, by channels_of_tile.
template <typename T>
__device__ __forceinline__ void add_channels(float (&sums)[8][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, Float16>) {
    DFLASH_FROM_SHARED("64", "f16", DFLASH_NAMES_64, "{%32, %33, %34, %35}", "%36", "1", ", 1")
        : DFLASH_SUMS_64
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    DFLASH_FROM_SHARED("64", "bf16", DFLASH_NAMES_64, "{%32, %33, %34, %35}", "%36", "1", ", 1")
        : DFLASH_SUMS_64
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
template <typename T>
__device__ __forceinline__ void add_channels(float (&sums)[16][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<T, Float16>) {
    DFLASH_FROM_SHARED("128", "f16", DFLASH_NAMES_128, "{%64, %65, %66, %67}", "%68", "1", ", 1")
        : DFLASH_SUMS_128
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    DFLASH_FROM_SHARED("128", "bf16", DFLASH_NAMES_128, "{%64, %65, %66, %67}", "%68", "1", ", 1")
        : DFLASH_SUMS_128
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

// In front of `begin_products`: registers that products take are written before it. Nothing else keeps the compiler
// from moving arithmetic, which touches no memory, behind it.
template <int kBlocks>
__device__ __forceinline__ void hold(float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    asm volatile("" : "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])::"memory");
  }
}
template <int kBlocks>
__device__ __forceinline__ void hold(uint32_t (&a)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    asm volatile("" : "+r"(a[j][0]), "+r"(a[j][1]), "+r"(a[j][2]), "+r"(a[j][3])::"memory");
  }
}

#undef DFLASH_FROM_SHARED
#undef DFLASH_NAMES_128
#undef DFLASH_NAMES_64
#undef DFLASH_SUMS_128
#undef DFLASH_SUMS_64
#undef DFLASH_QUAD

}  // namespace dflash::cuda
