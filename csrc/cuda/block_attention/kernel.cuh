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
  const uint32_t query_tile = shared_address(shared);
  const TileCopy<Traits, BlockAttentionLaunch, Context> copier(launch, work, context);
  KeyTileRing<Traits, decltype(copier)> ring(copier, query_tile + Traits::kQueryBytes, launch.stages, work.first_tile,
                                             work.end_tile);
  copy_queries<Traits>(launch, work, query_tile);
  ring.fill();

  const int active = active_row_blocks<Traits>(work.rows);
  Queries<Traits> queries(query_tile);
  RowSums<Traits> sums;
  sums.clear();
  for (int tile = work.first_tile; tile < work.end_tile; ++tile) {
    ring.wait();
    __syncthreads();  // every thread's copies have landed, and no warp reads the stage that is filled next
    if (tile == work.first_tile) queries.load();
    ring.copy_next();
    const int first_key = tile * Traits::kKeys;
    const bool masked = first_key < kept.unmasked.begin || first_key + Traits::kKeys > kept.unmasked.end;
    if (active == Traits::kRowBlocks) {
      attend_tile<Traits, Traits::kRowBlocks>(launch, kept, tile, masked, ring.stage(), queries, sums);
    } else if (active == 1) {
      attend_tile<Traits, 1>(launch, kept, tile, masked, ring.stage(), queries, sums);
    }
    ring.leave_tile();
  }
  add_lanes(sums);
  if (kept.first_split < kept.last_split && !combine_splits(launch, kept, active, sums)) return;
  write_rows(launch, kept, active, sums);
}

}  // namespace dflash::cuda
