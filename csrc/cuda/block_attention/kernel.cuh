#pragma once
#include "cuda/block_attention/copy.cuh"
#include "cuda/block_attention/epilogue.cuh"
#include "cuda/block_attention/tile.cuh"

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

// Block (row tile, kv head, split).
template <typename Traits>
__device__ __forceinline__ void block_attention(const BlockAttentionLaunch& launch) {
  extern __shared__ uint4 shared[];
  AttentionWork work;
  if (!find_work<Traits::kRows, Traits::kKeys>(launch, work)) return;
  const uint32_t kv_head = blockIdx.y;
  const uint32_t query_tile = shared_address(shared), first_stage = query_tile + Traits::kQueryBytes;
  const uint32_t end_stage = first_stage + launch.stages * Traits::kStageBytes;

  // One group of copies for each tile, also where there is no tile left, so that the latest groups can be counted. The
  // first has the queries too.
  const TileCopy<Traits> copier(launch, work, kv_head);
  int page = copier.page(work.first_tile);
  copy_queries<Traits>(launch, work, kv_head, query_tile);
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

  // Tiles between these need no mask.
  const int group = static_cast<int>(launch.group);
  const int unmasked_begin = visible_keys(launch, work, (work.first_row + work.rows - 1) / group).begin;
  const int unmasked_end = visible_keys(launch, work, work.first_row / group).end;
  int index[Traits::kRowBlocks][2];  // of a row in the request's block
  int active = 0;
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      index[i][half] = (work.first_row + min(row_of<Traits>(i, half), work.rows - 1)) / group;
    }
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
    const bool masked = first_key < unmasked_begin || first_key + Traits::kKeys > unmasked_end;
    if (active == Traits::kRowBlocks) {
      attend_tile<Traits, Traits::kRowBlocks>(launch, work, tile, masked, index, stage, queries, sums);
    } else if (active == 1) {
      attend_tile<Traits, 1>(launch, work, tile, masked, index, stage, queries, sums);
    }
    stage += Traits::kStageBytes;
    if (stage == end_stage) stage = first_stage;
  }
  add_lanes(sums);
  if (work.splits > 1 && !combine_splits(launch, work, active, sums)) return;
  write_rows(launch, work, active, kv_head, sums);
}

}  // namespace dflash::cuda
