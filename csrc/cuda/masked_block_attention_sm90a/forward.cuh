// The forward pass on Hopper: a block has a row tile of one kv head. One warpgroup copies the live key tiles of each of
// its segments into a ring of stages, the others multiply them, 64 rows each: by wgmma where all of them see the whole
// tile, and where they do not, warp by warp as on other GPUs.
#pragma once
#include "cuda/masked_block_attention_sm90a/copies.cuh"

namespace dflash::cuda {

// Registers of a thread; a multiprocessor has 64 K for 128 + 256 threads.
constexpr int kCopyingRegisters = 56, kAttendingRegisters = 224;

// ---- Products

// A tile that all rows of the warpgroup see whole.
template <typename Traits>
__device__ __forceinline__ void attend_whole_tile(float scale_log2, uint32_t stage, const Queries<Traits>& queries,
                                                  RowSums<Traits>& sums) {
  using T = typename Traits::T;
  Scores<Traits> scores;
  begin_products();
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    uint32_t q[4];
    queries.get(0, k, q);
    multiply_tiles<T>(scores[0], q, rows_of_tile(stage, k), k > 0);
  }
  close_products();
  wait_for_products<0>();
  scale_scores<Traits>(scale_log2, scores);
  weigh_scores<Traits, 1>(scores, sums);
  uint32_t weights[Traits::kKeyBlocks][4];
#pragma unroll
  for (int k = 0; k < Traits::kKeyBlocks; ++k) pack_weights<Traits>(scores[0], k, weights[k]);
  begin_products();
#pragma unroll
  for (int k = 0; k < Traits::kKeyBlocks; ++k) {
    add_channels<T>(sums.values[0], weights[k], channels_of_tile(stage + Traits::kTileBytes, k));
  }
  close_products();
  wait_for_products<0>();
}

template <typename Traits>
__device__ __forceinline__ void attend_segment(const MaskedAttentionLaunch& launch, const SegmentWork& work,
                                               uint32_t query_tile, const TileRing<Traits>& ring,
                                               RingPosition& position) {
  const MaskTiles& tiles = launch.tiles;
  const int first_row = Traits::row_block(0) * Traits::kWarpRows;
  __syncwarp();  // no lane still reads the queries of the segment before
  copy_queries<Traits>(launch, work, query_tile, first_row, first_row + Traits::kWarpRows,
                       static_cast<int>(threadIdx.x % kWarpLanes), kWarpLanes);
  close_copy_group();
  const RowSight of_warp = find_sight<Traits::kWarpRows>(tiles, work, first_row);
  const RowSight of_warpgroup = find_sight<kTileRows>(tiles, work, first_row / kTileRows * kTileRows);
  RowSums<Traits> sums;
  sums.clear();
  wait_for_copy_groups<0>();
  __syncwarp();
  Queries<Traits> queries(query_tile);
  queries.load();
  const KeyTileWalk walk(tiles, work.seen);
  for (int i = 0; i < walk.count(); ++i) {
    const int tile = walk.tile(i), first_key = keys_of_tile(tiles, tile).begin;
    const KeyStretch keys{first_key, first_key + Traits::kKeys};
    const bool of_blocks = holds_blocks(tiles, tile);
    const SeenByRows seen = of_warpgroup.of(of_blocks);
    const uint32_t stage = ring.tile(position.stage);
    wait_for_phase(ring.full(position.stage), position.parity);
    if (contains(seen.all, keys) && overlap(seen.any, keys)) {
      attend_whole_tile<Traits>(launch.scale_log2, stage, queries, sums);
    } else if (overlap(of_warp.of(of_blocks).any, keys)) {
      attend_partly_seen<Traits>(launch, work, of_blocks, first_key, of_warp.of(of_blocks).any, stage, queries, sums);
    }
    arrive_as_warp(ring.empty(position.stage));
    position.advance(ring.stages());
  }
  add_lanes(sums);
  write_rows<Traits>(launch, work, sums);
}

// ---- Blocks

// Those with the most live key tiles come first. Every warp finds the segments by itself: no barrier lies between them.
template <typename Traits>
__device__ __forceinline__ void masked_block_attention_by_warpgroups(const WarpgroupAttentionLaunch& launch) {
  extern __shared__ __align__(1024) unsigned char tiles_and_barriers[];
  const uint32_t shared = shared_address(tiles_and_barriers);
  const TileRing<Traits> ring(shared, launch.pass.stages);
  if (threadIdx.x == 0) {
    if (launch.boxes != 0) {
      prefetch_tensor_map(launch.k_map);
      prefetch_tensor_map(launch.v_map);
    }
    ring.init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroupThreads) {
    give_up_registers<kCopyingRegisters>();
    copy_segments<Traits>(launch, ring);
    return;
  }
  take_registers<kAttendingRegisters>();
  RingPosition position;
  int begin = 0;
  bool is_last = false;
  while (!is_last) {
    const SegmentWork work = find_segment<Traits>(launch.pass, begin);
    attend_segment<Traits>(launch.pass, work, shared, ring, position);
    begin = work.next_segment;
    is_last = work.is_last != 0;
  }
}

}  // namespace dflash::cuda
