// The one warpgroup that copies key tiles, and the ring of stages through which the others get them.
#pragma once
#include "cuda/common/bulk_copy.cuh"
#include "cuda/masked_block_attention/rows.cuh"
#include "cuda/masked_block_attention_sm90a/traits.cuh"

namespace dflash::cuda {

// In shared memory: queries, stages, and two barriers for each stage. `shared` is where they start.
template <typename Traits>
struct TileRing {
  static constexpr uint32_t kStages = kWarpgroupAttentionStages;
  static constexpr uint32_t kBarriers = Traits::kQueryBytes + kStages * Traits::kStageBytes;
  static constexpr uint32_t kEnd = kBarriers + 2 * 8 * kStages;  // a multiple of 16 bytes
  uint32_t shared;

  // By one thread, before a barrier of the block.
  __device__ __forceinline__ void init() const {
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      init_barrier(full(stage), Traits::kCopyWarps);
      init_barrier(empty(stage), Traits::kAttendingWarps);
    }
    publish_barriers();
  }
  __device__ __forceinline__ uint32_t tile(uint32_t stage) const {
    return shared + Traits::kQueryBytes + stage * Traits::kStageBytes;
  }
  // A tile has landed and may be multiplied.
  __device__ __forceinline__ uint32_t full(uint32_t stage) const { return shared + kBarriers + 8 * stage; }
  // No warp reads the tile any more, by ldmatrix or wgmma: both are over when it arrives.
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return full(kStages + stage); }
};

// What a warp works on. Attending warps keep it in shared memory, so that it takes no registers beside sums and scores.
struct WarpSegment {
  uint32_t unit;  // row tile and kv head
  SegmentWork work;
  RowSight sight;  // of an attending warp's rows
};

// The unit after this one. Blocks have one in each round, those with the most live key tiles first, and take turns
// there and back, so that none has the longer ones each time.
__device__ __forceinline__ uint32_t next_unit(uint32_t unit) {
  return unit + (unit / gridDim.x % 2 == 0 ? 2 * (gridDim.x - blockIdx.x) - 1 : 2 * blockIdx.x + 1);
}

// Calls work() for every segment of the block's units. Each warp finds them alone: no barrier lies between two
// segments.
template <typename Traits, typename Work>
__device__ __forceinline__ void for_each_segment(const MaskedAttentionLaunch& launch, WarpSegment& segment,
                                                 const Work& work) {
  uint32_t unit = blockIdx.x;
  while (unit < launch.tiles.row_tile_count * static_cast<uint32_t>(launch.op.kv_heads)) {
    int begin = 0;  // query of the row tile with which the segment starts
    bool is_last = false;
    while (!is_last) {
      const SegmentWork found = find_segment<Traits>(launch, unit, begin);
      segment.work = found;
      segment.unit = unit;
      __syncwarp();
      work();
      unit = segment.unit;
      begin = segment.work.next_segment;
      is_last = segment.work.is_last != 0;
      __syncwarp();
    }
    unit = next_unit(unit);
  }
}

// Whether a key tile comes by TMA: context keys, all of them within the segment's hull. Others are gathered, whose rows
// do not lie one behind the other, or are zero.
template <typename Traits>
__device__ __forceinline__ bool comes_in_boxes(const WarpgroupAttentionLaunch& launch, const SegmentWork& work,
                                               int tile) {
  const MaskTiles& tiles = launch.pass.tiles;
  if (launch.boxes == 0 || holds_blocks(tiles, tile)) return false;
  const int first_key = keys_of_tile(tiles, tile).begin;
  return contains(stretch_of(work.seen, false), {first_key, first_key + Traits::kKeys});
}

// Requests a tile in boxes of 64 channels, each a panel, and arrives for all warps: every one of them calls this.
template <typename Traits>
__device__ __forceinline__ void copy_boxes(const WarpgroupAttentionLaunch& launch, const SegmentWork& work, int tile,
                                           uint32_t stage, uint32_t full) {
  if (threadIdx.x % kWarpLanes != 0) return;
  if (threadIdx.x != 0) return arrive(full);
  arrive_expecting_bytes(full, Traits::kStageBytes);
  const int32_t head = static_cast<int32_t>(work.kv_head), row = keys_of_tile(launch.pass.tiles, tile).begin;
#pragma unroll
  for (int panel = 0; panel < Traits::kTileBytes / kPanelBytes; ++panel) {
    const uint32_t to = stage + panel * kPanelBytes;
    const int32_t channel = panel * static_cast<int32_t>(kTensorMapChannels);
    copy_box(to, launch.k_map, channel, head, row, full);
    copy_box(to + Traits::kTileBytes, launch.v_map, channel, head, row, full);
  }
}

// Of boxes, the barrier itself notices when they have landed. Gathered rows are announced by those who copied them, a
// round later, so that two tiles are under way.
template <typename Traits>
__device__ __forceinline__ void copy_segment(const WarpgroupAttentionLaunch& launch, const SegmentWork& work,
                                             const TileRing<Traits>& ring, RingPosition& next, RingPosition& landed) {
  const KeyTileWalk walk(launch.pass.tiles, work.seen);
  // A group of copies for each round, also an empty one, so that the latest groups can be counted.
  for (int i = 0; i < walk.count() + kWarpgroupTilesUnderWay - 1; ++i) {
    if (i < walk.count()) {
      const int tile = walk.tile(i);
      wait_for_phase(ring.empty(next.stage), next.parity ^ 1);
      if (comes_in_boxes<Traits>(launch, work, tile)) {
        copy_boxes<Traits>(launch, work, tile, ring.tile(next.stage), ring.full(next.stage));
      } else {
        KeyTileCopy<Traits>::copy(launch.pass, work, tile, ring.tile(next.stage));
      }
      next.advance(ring.kStages);
    }
    close_copy_group();
    const int before = i - (kWarpgroupTilesUnderWay - 1);
    if (before < 0) continue;
    if (!comes_in_boxes<Traits>(launch, work, walk.tile(before))) {
      wait_for_copy_groups<kWarpgroupTilesUnderWay - 1>();
      publish_to_async_proxy();
      arrive_as_warp(ring.full(landed.stage));
    }
    landed.advance(ring.kStages);
  }
}

}  // namespace dflash::cuda
