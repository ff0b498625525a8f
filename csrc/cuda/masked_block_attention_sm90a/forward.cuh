// The forward pass on Hopper: a block has a row tile of one kv head. One warpgroup copies the live key tiles of each of
// its segments into a ring of stages, the others multiply them, 64 rows each: by wgmma where all of them see the whole
// tile, and where they do not, warp by warp as on other GPUs.
#pragma once
#include "cuda/masked_block_attention_sm90a/copies.cuh"

namespace dflash::cuda {

// Registers of a thread; a multiprocessor has 64 K for 128 + 256 threads.
constexpr int kCopyingRegisters = 56, kAttendingRegisters = 224;

// ---- Products

template <typename Traits>
__device__ __forceinline__ void start_scores(const Queries<Traits>& queries, uint32_t stage, Scores<Traits>& scores) {
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    uint32_t q[4];
    queries.get(0, k, q);
    multiply_tiles<typename Traits::T>(scores[0], q, rows_of_tile(stage, k), k > 0);
  }
  close_products();
}

// A key tile's weights in 16 bits.
template <typename Traits>
struct TileWeights {
  uint32_t blocks[Traits::kKeyBlocks][4];

  __device__ __forceinline__ void pack(const Scores<Traits>& scores) {
#pragma unroll
    for (int k = 0; k < Traits::kKeyBlocks; ++k) pack_weights<Traits>(scores[0], k, blocks[k]);
  }
  __device__ __forceinline__ void start_values(uint32_t stage, RowSums<Traits>& sums) const {
#pragma unroll
    for (int k = 0; k < Traits::kKeyBlocks; ++k) {
      add_channels<typename Traits::T>(sums.values[0], blocks[k], channels_of_tile(stage + Traits::kTileBytes, k));
    }
    close_products();
  }
};

// A run of tiles that all rows of the warpgroup see whole: the one in `position` and those after it for which
// `goes_on()`. While a tile's scores become weights, the values of the one before are multiplied. Leaves `position` at
// the next tile.
template <typename Traits, typename GoesOn>
__device__ __forceinline__ void attend_whole_tiles(float scale_log2, const TileRing<Traits>& ring,
                                                   const Queries<Traits>& queries, const GoesOn& goes_on,
                                                   RingPosition& position, RowSums<Traits>& sums) {
  Scores<Traits> scores;
  TileWeights<Traits> weights;
  wait_for_phase(ring.full(position.stage), position.parity);
  begin_products();
  start_scores<Traits>(queries, ring.tile(position.stage), scores);
  wait_for_products<0>(scores[0]);
  scale_scores<Traits>(scale_log2, scores);
  weigh_scores<Traits, 1>(scores, sums);
  weights.pack(scores);
  while (goes_on()) {
    const uint32_t before = position.stage;
    position.advance(ring.kStages);
    wait_for_phase(ring.full(position.stage), position.parity);
    begin_products();
    start_scores<Traits>(queries, ring.tile(position.stage), scores);
    weights.start_values(ring.tile(before), sums);
    wait_for_products<1>(scores[0]);
    scale_scores<Traits>(scale_log2, scores);
    float largest[1][2], factors[2];
    const bool rises = find_largest<Traits, 1>(scores, sums, largest);
    if (rises) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factors[half] = earlier_factor(sums.largest[0][half], largest[0][half]);
        sums.weights[0][half] *= factors[half];
        sums.largest[0][half] = largest[0][half];
      }
    }
    exponentiate_scores<Traits, 1>(scores, largest, sums);
    wait_for_products<0>(sums.values[0]);
    arrive_as_warp(ring.empty(before));
    if (rises) {
      sums.scale_values(0, 0, factors[0]);
      sums.scale_values(0, 1, factors[1]);
    }
    weights.pack(scores);
  }
  begin_products();
  weights.start_values(ring.tile(position.stage), sums);
  wait_for_products<0>(sums.values[0]);
  arrive_as_warp(ring.empty(position.stage));
  position.advance(ring.kStages);
}

// The first key of a tile, and which kind of keys it has.
template <typename Traits>
struct KeyTilePlace {
  bool of_blocks;
  KeyStretch keys;  // also behind the last one
  __device__ __forceinline__ KeyTilePlace(const MaskTiles& tiles, int tile) : of_blocks(holds_blocks(tiles, tile)) {
    keys.begin = keys_of_tile(tiles, tile).begin;
    keys.end = keys.begin + Traits::kKeys;
  }
  __device__ __forceinline__ bool is_whole_to(const RowSight& rows) const {
    const SeenByRows seen = rows.of(of_blocks);
    return contains(seen.all, keys) && overlap(seen.any, keys);
  }
};

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
    const KeyTilePlace<Traits> tile(tiles, walk.tile(i));
    if (tile.is_whole_to(of_warpgroup)) {
      const auto goes_on = [&] {
        if (i + 1 == walk.count()) return false;
        if (!KeyTilePlace<Traits>(tiles, walk.tile(i + 1)).is_whole_to(of_warpgroup)) return false;
        ++i;
        return true;
      };
      attend_whole_tiles<Traits>(launch.scale_log2, ring, queries, goes_on, position, sums);
      continue;
    }
    wait_for_phase(ring.full(position.stage), position.parity);
    const KeyStretch seen = of_warp.of(tile.of_blocks).any;
    if (overlap(seen, tile.keys)) {
      attend_partly_seen<Traits>(launch, work, tile.of_blocks, tile.keys.begin, seen, ring.tile(position.stage),
                                 queries, sums);
    }
    arrive_as_warp(ring.empty(position.stage));
    position.advance(ring.kStages);
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
  const TileRing<Traits> ring{shared};
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
