// The forward pass: a block has a row tile of one kv head and walks the live key tiles of each of its segments.
#pragma once
#include "cuda/common/attention_stages.cuh"
#include "cuda/masked_block_attention/rows.cuh"
#include "cuda/masked_block_attention/traits.cuh"

namespace dflash::cuda {

// What of a segment lies in shared memory, so that it takes no registers beside sums and scores.
template <typename Traits>
struct SegmentState {
  SegmentWork work;
  KeyTileWalk walk;
  RowSight sight[Traits::kWarps];
};

// A tile that every row of the warp sees whole carries no mask.
template <typename Traits>
__device__ __forceinline__ void attend_tile(const MaskedAttentionLaunch& launch, const SegmentState<Traits>& state,
                                            int tile, uint32_t stage, const Queries<Traits>& queries,
                                            RowSums<Traits>& sums) {
  const bool of_blocks = holds_blocks(launch.tiles, tile);
  const SeenByRows seen = state.sight[threadIdx.x / kWarpLanes].of(of_blocks);
  const int first_key = keys_of_tile(launch.tiles, tile).begin;
  const KeyStretch whole{first_key, first_key + Traits::kKeys};
  if (!overlap(seen.any, whole)) return;
  if (contains(seen.all, whole)) {
    Scores<Traits> scores;
    multiply_keys<Traits, Traits::kRowBlocks>(queries, stage, scores);
    scale_scores<Traits>(launch.scale_log2, scores);
    weigh_scores<Traits, Traits::kRowBlocks>(scores, sums);
    add_values<Traits, Traits::kRowBlocks>(scores, stage + Traits::kTileBytes, sums);
  } else {
    attend_partly_seen<Traits>(launch, state.work, of_blocks, first_key, seen.any, stage, queries, sums);
  }
}

// ---- The walk

template <typename Traits>
__device__ __forceinline__ void attend_segment(const MaskedAttentionLaunch& launch, SegmentState<Traits>& state,
                                               uint32_t query_tile) {
  const uint32_t first_stage = query_tile + Traits::kQueryBytes;
  const uint32_t end_stage = first_stage + launch.stages * Traits::kStageBytes;
  // One group of copies for each tile, also where there is no tile left, so that the latest groups can be counted. The
  // first has the queries too.
  const auto copy = [&](int number, uint32_t stage) {
    if (number < state.walk.count()) {
      KeyTileCopy<Traits>::copy(launch, state.work, state.walk.tile(number), stage);
    }
    close_copy_group();
  };
  copy_queries<Traits>(launch, state.work, query_tile, 0, Traits::kRows, static_cast<int>(threadIdx.x),
                       Traits::kThreads);
  const int ahead = static_cast<int>(launch.stages) - 1;
  for (int i = 0; i < ahead; ++i) copy(i, first_stage + i * Traits::kStageBytes);
  const int warp = static_cast<int>(threadIdx.x / kWarpLanes);
  const RowSight sight = find_sight<Traits::kWarpRows>(launch.tiles, state.work, warp * Traits::kWarpRows);
  if (threadIdx.x % kWarpLanes == 0) state.sight[warp] = sight;  // read behind a barrier

  Queries<Traits> queries(query_tile);
  RowSums<Traits> sums;
  sums.clear();
  uint32_t stage = first_stage;
  for (int i = 0; i < state.walk.count(); ++i) {
    wait_for_tile(launch.stages);
    __syncthreads();  // every thread's copies have landed, and no warp reads the stage that is filled next
    if (i == 0) queries.load();
    copy(i + ahead, (stage == first_stage ? end_stage : stage) - Traits::kStageBytes);
    attend_tile<Traits>(launch, state, state.walk.tile(i), stage, queries, sums);
    stage += Traits::kStageBytes;
    if (stage == end_stage) stage = first_stage;
  }
  add_lanes(sums);
  write_rows<Traits>(launch, state.work, sums);
}

// Block: a row tile and kv head, those with the most live key tiles first.
template <typename Traits>
__device__ __forceinline__ void masked_block_attention(const MaskedAttentionLaunch& launch) {
  extern __shared__ uint4 shared[];
  __shared__ SegmentState<Traits> state;
  int begin = 0;  // query of the row tile with which the segment starts
  bool is_last = false;
  while (!is_last) {
    const SegmentWork work = find_segment<Traits>(launch, blockIdx.x, begin);
    wait_for_copy_groups<0>();
    __syncthreads();  // no warp is still at the segment before
    if (threadIdx.x == 0) {
      state.work = work;
      state.walk = KeyTileWalk(launch.tiles, work.seen);
    }
    __syncthreads();
    attend_segment<Traits>(launch, state, shared_address(shared));
    begin = state.work.next_segment;
    is_last = state.work.is_last != 0;
  }
}

}  // namespace dflash::cuda
