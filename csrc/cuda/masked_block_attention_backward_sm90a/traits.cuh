// The shapes of the backward kernels that multiply by warpgroups, and how shared memory is laid out.
//
// A block is three warpgroups: the first copies, the two others own 64 keys or rows each. What a warpgroup's keys meet
// wholly is multiplied by wgmma. What they meet in part goes warp by warp through the functions of the other
// architectures' kernels, which read the same tiles and have their sums in the same registers: masks have one
// definition.
#pragma once
#include "cuda/common/warpgroup.cuh"
#include "cuda/masked_block_attention_backward/traits.cuh"

namespace dflash::cuda {

// `kFirstOwner`: the first thread that owns sums.
template <typename T, int kHeadDim, int kFirstOwner = kWarpgroupThreads>
struct WarpgroupBackwardTraits : MaskedBackwardTraits<T, kHeadDim> {
  using Base = MaskedBackwardTraits<T, kHeadDim>;
  static constexpr int kThreads = kWarpgroupThreads;  // that copy
  static constexpr int kOwners = kWarpgroupBackwardOwners;
  static constexpr int kKeys = kWarpgroupBackwardTile, kRows = kWarpgroupBackwardTile;
  static constexpr int kKeyBytes = kKeys * Base::kRowBytes;  // and of a tile of rows
  static constexpr int kStageRows = kWarpgroupBackwardStep, kStageKeys = kWarpgroupBackwardStep;
  static_assert(kStageRows == kTileRows && kKeys == 2 * kTileRows, "stages and warpgroups have tiles of wgmma");
  static constexpr int kStageRowBytes = kStageRows * Base::kRowBytes, kStageKeyBytes = kStageRowBytes;
  static constexpr int kStageTileBytes = 2 * kStageRowBytes;
  static constexpr int64_t kPartialFloats = masked_backward_partial_floats(kHeadDim, kKeys);

  static __device__ __forceinline__ uint32_t place(int row, int chunk) { return place_in_panels<kHeadDim>(row, chunk); }
  // From a tile to its row `row`, a multiple of 8, as the first row of what is read as a tile.
  static constexpr int kBytesToRow = 128;

  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) - kFirstOwner; }
  static __device__ __forceinline__ int warp() { return thread() / kWarpLanes; }
  // Taken from one lane, so that the compiler knows it to be the same in all: descriptors then cost no vector register.
  static __device__ __forceinline__ int warpgroup() { return __shfl_sync(kAllLanes, thread() / kWarpgroupThreads, 0); }
};

// Registers of a thread once the block's warpgroups have shared them out anew: 64,512 in all, as at first.
constexpr int kCopyingRegisters = 40, kOwningRegisters = 232;

// What a stage holds: the first row or key, -1 behind the last stage.
struct StageMark {
  int first;
  bool of_blocks;
};

// A block's own tile (keys and values, or queries and gradients of outputs), stages of the same, and what goes with a
// stage.
template <typename Traits>
struct SharedParts {
  static constexpr int kStages = kWarpgroupBackwardStages;
  static constexpr int kOwnBytes = 2 * Traits::kKeyBytes;
  static constexpr int kTermsAt = kOwnBytes + kStages * Traits::kStageTileBytes;
  static constexpr int kSeenAt = kTermsAt + kStages * Traits::kStageRows * static_cast<int>(sizeof(MaskedRowTerms));
  static constexpr int kMarksAt = kSeenAt + kStages * Traits::kStageRows * static_cast<int>(sizeof(QueryKeys));
  static constexpr int kBarriersAt = kMarksAt + kStages * 16;
  static_assert(kBarriersAt + kStages * 16 == warpgroup_backward_shared_bytes(Traits::kHeadDim), "as planned");
  static_assert(sizeof(StageMark) <= 16, "beside the barriers");

  unsigned char* bytes;  // on a multiple of 1,024 bytes

  __device__ __forceinline__ uint32_t own() const { return shared_address(bytes); }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return own() + kOwnBytes + i * Traits::kStageTileBytes;
  }
  __device__ __forceinline__ MaskedRowTerms* terms(uint32_t i) const {
    return reinterpret_cast<MaskedRowTerms*>(bytes + kTermsAt) + i * Traits::kStageRows;
  }
  __device__ __forceinline__ QueryKeys* seen(uint32_t i) const {
    return reinterpret_cast<QueryKeys*>(bytes + kSeenAt) + i * Traits::kStageRows;
  }
  __device__ __forceinline__ StageMark& mark(uint32_t i) const {
    return *reinterpret_cast<StageMark*>(bytes + kMarksAt + i * 16);
  }
  __device__ __forceinline__ uint32_t filled(uint32_t i) const { return own() + kBarriersAt + i * 16; }
  __device__ __forceinline__ uint32_t emptied(uint32_t i) const { return filled(i) + 8; }
};

}  // namespace dflash::cuda
