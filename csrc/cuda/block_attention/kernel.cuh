#pragma once
#include "cuda/block_attention/copy.cuh"
#include "cuda/block_attention/epilogue.cuh"
#include "cuda/block_attention/tile.cuh"
#include "cuda/common/attention_stages.cuh"

namespace dflash::cuda {

// Block (row tile, kv head, split).
template <typename Traits, typename Context>
__device__ __forceinline__ void block_attention(const BlockAttentionLaunch& launch, Context context) {
  extern __shared__ uint4 shared[];
  __shared__ AttentionWork kept;  // for what is seldom needed, so that it takes no registers in between
  AttentionWork work;
  if (!find_work<Traits::kRows, Traits::kKeys>(launch, context, work)) return;
  if (threadIdx.x == 0) kept = work;
  const uint32_t query_tile = shared_address(shared), first_stage = query_tile + Traits::kQueryBytes;
  const uint32_t end_stage = first_stage + launch.stages * Traits::kStageBytes;

  // One group of copies for each tile, also where there is no tile left, so that the latest groups can be counted. The
  // first has the queries too.
  const TileCopy<Traits, BlockAttentionLaunch, Context> copier(launch, work, context);
  int page = copier.page(work.first_tile);
  copy_queries<Traits>(launch, work, query_tile);
  uint32_t copy_stage = first_stage;
  int next = work.first_tile;
  const auto copy_next = [&] {
    if (next < work.end_tile) {
      const int page_after = copier.page(next + 1);
      copier.copy(next, page, copy_stage);
      page = page_after;
    }
    close_copy_group();
    ++next;
    copy_stage += Traits::kStageBytes;
    if (copy_stage == end_stage) copy_stage = first_stage;
  };
  for (uint32_t i = 1; i < launch.stages; ++i) copy_next();

  int active = 0;  // row blocks of this warp that hold rows
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
    if ((i * Traits::kWarps + static_cast<int>(threadIdx.x / kWarpLanes)) * 16 < work.rows) active = i + 1;
  }

  Queries<Traits> queries(query_tile);
  RowSums<Traits> sums;
  sums.clear();
  uint32_t stage = first_stage;
  for (int tile = work.first_tile; tile < work.end_tile; ++tile) {
    wait_for_tile(launch.stages);
    __syncthreads();  // every thread's copies have landed, and no warp reads the stage that is filled next
    if (tile == work.first_tile) queries.load();
    copy_next();
    const int first_key = tile * Traits::kKeys;
    const bool masked = first_key < kept.unmasked.begin || first_key + Traits::kKeys > kept.unmasked.end;
    if (active == Traits::kRowBlocks) {
      attend_tile<Traits, Traits::kRowBlocks>(launch, kept, tile, masked, stage, queries, sums);
    } else if (active == 1) {
      attend_tile<Traits, 1>(launch, kept, tile, masked, stage, queries, sums);
    }
    stage += Traits::kStageBytes;
    if (stage == end_stage) stage = first_stage;
  }
  add_lanes(sums);
  if (kept.first_split < kept.last_split && !combine_splits(launch, kept, active, sums)) return;
  write_rows(launch, kept, active, sums);
}

}  // namespace dflash::cuda
