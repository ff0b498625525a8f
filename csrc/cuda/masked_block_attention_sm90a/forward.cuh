// The forward pass on Hopper: a block has one row tile of a kv head after another. One warpgroup copies the live key
// tiles of each of its segments into a ring of stages, the others multiply them, 64 rows each: by wgmma where all of
// them see the whole tile, and where they do not, warp by warp as on other GPUs.
#pragma once
#include "cuda/masked_block_attention_sm90a/copies.cuh"

namespace dflash::cuda {

// Registers of a thread; a multiprocessor has 64 K for 128 + 256 threads.
constexpr int kCopyingRegisters = 72, kAttendingRegisters = 216;

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

// What all of a warpgroup's rows see of either kind of keys.
struct WholeStretches {
  KeyStretch context, blocks;

  __device__ __forceinline__ explicit WholeStretches(const RowSight& sight)
      : context(of_any(sight.context)), blocks(of_any(sight.blocks)) {}
  __device__ __forceinline__ bool contain(bool of_blocks, const KeyStretch& keys) const {
    const KeyStretch seen = of_blocks ? KeyStretch{blocks.begin, blocks.end} : KeyStretch{context.begin, context.end};
    return contains(seen, keys);
  }

 private:
  // Where there is no row, all of them see every key.
  static __device__ __forceinline__ KeyStretch of_any(const SeenByRows& seen) {
    return seen.any.empty() ? KeyStretch{0, 0} : seen.all;
  }
};

// The keys of a whole tile in the place of this one.
template <typename Traits>
__device__ __forceinline__ KeyStretch whole_tile(const MaskTiles& tiles, int tile) {
  const int first_key = keys_of_tile(tiles, tile).begin;
  return {first_key, first_key + Traits::kKeys};
}

template <typename Traits>
__device__ __forceinline__ void attend_segment(const MaskedAttentionLaunch& launch, WarpSegment& segment,
                                               const TileRing<Traits>& ring, RingPosition& position) {
  const MaskTiles& tiles = launch.tiles;
  const SegmentWork& work = segment.work;
  const int first_row = Traits::row_block(0) * Traits::kWarpRows;
  copy_queries<Traits>(launch, work, ring.shared, first_row, first_row + Traits::kWarpRows,
                       static_cast<int>(threadIdx.x % kWarpLanes), kWarpLanes);
  close_copy_group();
  segment.sight = find_sight<Traits::kWarpRows>(tiles, work, first_row);
  const WholeStretches whole(find_sight<kTileRows>(tiles, work, first_row / kTileRows * kTileRows));
  const KeyTileWalk walk(tiles, work.seen);
  RowSums<Traits> sums;
  sums.clear();
  wait_for_copy_groups<0>();
  __syncwarp();
  Queries<Traits> queries(ring.shared);
  queries.load();
  const auto is_whole = [&](int i) {
    return whole.contain(holds_blocks(tiles, walk.tile(i)), whole_tile<Traits>(tiles, walk.tile(i)));
  };
  for (int i = 0; i < walk.count(); ++i) {
    if (is_whole(i)) {
      const auto goes_on = [&] {
        const bool on = i + 1 < walk.count() && is_whole(i + 1);
        i += on ? 1 : 0;
        return on;
      };
      attend_whole_tiles<Traits>(launch.scale_log2, ring, queries, goes_on, position, sums);
      continue;
    }
    wait_for_phase(ring.full(position.stage), position.parity);
    const bool of_blocks = holds_blocks(tiles, walk.tile(i));
    const KeyStretch keys = whole_tile<Traits>(tiles, walk.tile(i)), seen = segment.sight.of(of_blocks).any;
    if (overlap(seen, keys)) {
      attend_partly_seen<Traits>(launch, work, of_blocks, keys.begin, seen, ring.tile(position.stage), queries, sums);
    }
    arrive_as_warp(ring.empty(position.stage));
    position.advance(ring.kStages);
  }
  add_lanes(sums);
  write_rows<Traits>(launch, work, sums);
}

// ---- Blocks

// As many as there are multiprocessors: the next row tile's keys are on their way while results are written.
template <typename Traits>
__device__ __forceinline__ void masked_block_attention_by_warpgroups(const WarpgroupAttentionLaunch& launch) {
  // Nothing else, which would move the tiles.
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(Traits::kAttendingWarps * sizeof(WarpSegment) <= kWarpgroupAttentionKeptBytes, "room for segments");
  const TileRing<Traits> ring{shared_address(shared)};
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
    WarpSegment segment;
    RingPosition next, landed;
    for_each_segment<Traits>(launch.pass, segment,
                             [&] { copy_segment<Traits>(launch, segment.work, ring, next, landed); });
  } else {
    take_registers<kAttendingRegisters>();
    WarpSegment& segment = reinterpret_cast<WarpSegment*>(shared + ring.kEnd)[Traits::row_block(0)];
    RingPosition position;
    for_each_segment<Traits>(launch.pass, segment,
                             [&] { attend_segment<Traits>(launch.pass, segment, ring, position); });
  }
}

}  // namespace dflash::cuda
