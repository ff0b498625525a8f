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

// A ring of stages in shared memory through which the key tiles from `first_tile` to `end_tile` pass. All but one hold
// tiles on their way; the free one, that of the tile before, is filled while a tile is used. `Copy` has page(tile),
// looked up a tile ahead, and copy(tile, page, stage).
// `stages` stays where it is: a launch's parameter is read anew rather than kept in a register.
template <typename Traits, typename Copy>
class KeyTileRing {
 public:
  __device__ __forceinline__ KeyTileRing(const Copy& copy, uint32_t first_stage, const uint32_t& stages, int first_tile,
                                         int end_tile)
      : copy_(copy),
        stages_(stages),
        first_stage_(first_stage),
        end_stage_(first_stage + stages * Traits::kStageBytes),
        next_(first_tile),
        end_tile_(end_tile),
        page_(copy.page(first_tile)),
        copy_stage_(first_stage),
        stage_(first_stage) {}

  // Starts the copies of as many tiles as there are stages but one.
  __device__ __forceinline__ void fill() {
    for (uint32_t i = 1; i < stages_; ++i) copy_next();
  }

  // One group of copies for each tile, also where there is no tile left, so that the latest groups can be counted. The
  // first has what the thread began to copy before, too.
  __device__ __forceinline__ void copy_next() {
    if (next_ < end_tile_) {
      const int page_after = copy_.page(next_ + 1);
      copy_.copy(next_, page_, copy_stage_);
      page_ = page_after;
    }
    close_copy_group();
    ++next_;
    advance(copy_stage_);
  }

  // Until this thread's copies of the tile to be used have landed.
  __device__ __forceinline__ void wait() const { wait_for_tile(stages_); }

  // Where the tile to be used lies.
  __device__ __forceinline__ uint32_t stage() const { return stage_; }

  // On to the next tile.
  __device__ __forceinline__ void leave_tile() { advance(stage_); }

 private:
  __device__ __forceinline__ void advance(uint32_t& stage) const {
    stage += Traits::kStageBytes;
    if (stage == end_stage_) stage = first_stage_;
  }

  const Copy& copy_;
  const uint32_t& stages_;
  uint32_t first_stage_, end_stage_;
  int next_, end_tile_, page_;
  uint32_t copy_stage_, stage_;
};

}  // namespace dflash::cuda
