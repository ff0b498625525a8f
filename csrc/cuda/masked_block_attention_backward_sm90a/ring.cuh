// The ring of stages between the warpgroup that copies and those that multiply.
#pragma once
#include "cuda/masked_block_attention_backward_sm90a/traits.cuh"

namespace dflash::cuda {

// By all threads of the block.
template <typename Traits>
__device__ __forceinline__ void start_ring(const SharedParts<Traits>& shared) {
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < shared.kStages; ++i) {
      init_barrier(shared.filled(i), kWarpgroupThreads / kWarpLanes);
      init_barrier(shared.emptied(i), Traits::kOwners / kWarpLanes);
    }
    publish_barriers();
  }
  __syncthreads();
}

// The copying warpgroup's end. A stage is filled by copies that only wait for each other, so kWarpgroupBackwardInFlight
// stages are under way while the one before them is handed over.
template <typename Traits>
class StageWriter {
 public:
  __device__ __forceinline__ explicit StageWriter(const SharedParts<Traits>& shared) : shared_(shared) {}

  // The next stage, once nobody reads it any more.
  __device__ __forceinline__ uint32_t next() const {
    wait_for_phase(shared_.emptied(next_.stage), next_.parity ^ 1);
    return next_.stage;
  }
  // All of the stage's copies have been requested.
  __device__ __forceinline__ void close(const StageMark& mark) {
    if (threadIdx.x == 0) shared_.mark(next_.stage) = mark;
    close_copy_group();
    next_.advance(shared_.kStages);
    if (++under_way_ > kWarpgroupBackwardInFlight) {
      wait_for_copy_groups<kWarpgroupBackwardInFlight>();
      hand_over();
    }
  }
  // Behind the last stage.
  __device__ __forceinline__ void finish() {
    wait_for_copy_groups<0>();
    while (under_way_ > 0) hand_over();
    const uint32_t stage = next();
    if (threadIdx.x == 0) shared_.mark(stage) = {-1, false};
    ++under_way_;
    hand_over();
  }

 private:
  // The oldest stage under way, whose copies by this thread have landed.
  __device__ __forceinline__ void hand_over() {
    publish_to_async_proxy();
    arrive_as_warp(shared_.filled(oldest_.stage));
    oldest_.advance(shared_.kStages);
    --under_way_;
  }

  const SharedParts<Traits>& shared_;
  RingPosition next_, oldest_;
  int under_way_ = 0;
};

// The other end, of a warp.
template <typename Traits>
class StageReader {
 public:
  __device__ __forceinline__ explicit StageReader(const SharedParts<Traits>& shared) : shared_(shared) {}

  __device__ __forceinline__ uint32_t stage() const { return at_.stage; }
  // Once it is filled.
  __device__ __forceinline__ StageMark mark() const {
    wait_for_phase(shared_.filled(at_.stage), at_.parity);
    return shared_.mark(at_.stage);
  }
  // This warp, and its products, have read the stage.
  __device__ __forceinline__ void release() {
    arrive_as_warp(shared_.emptied(at_.stage));
    at_.advance(shared_.kStages);
  }

 private:
  const SharedParts<Traits>& shared_;
  RingPosition at_;
};

}  // namespace dflash::cuda
