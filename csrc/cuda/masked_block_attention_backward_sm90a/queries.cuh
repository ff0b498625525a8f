// Gradients of a row tile's queries, as cuda/masked_block_attention_backward/queries.cuh says: by warpgroups.
#pragma once
#include "cuda/masked_block_attention_backward/queries.cuh"
#include "cuda/masked_block_attention_backward_sm90a/products.cuh"
#include "cuda/masked_block_attention_backward_sm90a/ring.cuh"

namespace dflash::cuda {

// The copying warpgroup: the block's rows, then the keys that some of them see, a step a stage.
template <typename Traits>
__device__ __forceinline__ void copy_steps(const MaskedBackwardLaunch& launch, int tile, int kv_head,
                                           const SharedParts<Traits>& shared) {
  StageWriter<Traits> writer(shared);
  const RowTile seen = launch.tiles.row_tiles[tile];
  const KeyTileWalk walk(launch.tiles, seen.seen);
  copy_rows<Traits, Traits::kRows>(launch, kv_head, tile * Traits::kRows, shared.own());
  for (int i = 0; i < walk.count(); ++i) {
    const int key_tile = walk.tile(i);
    if (seen.gaps != 0 && !is_live(launch.tiles, tile, seen, key_tile)) continue;
    const bool of_blocks = holds_blocks(launch.tiles, key_tile);
    const int first_key = keys_of_tile(launch.tiles, key_tile).begin;
    for (int step = 0; step < Traits::kKeys; step += Traits::kStageKeys) {
      const int key = first_key + step;
      if (!overlap(stretch_of(seen.seen, of_blocks), {key, key + Traits::kStageKeys})) continue;
      copy_keys<Traits, Traits::kStageKeys>(launch, kv_head, key_tile, step, shared.stage(writer.next()));
      writer.close({key, of_blocks});
    }
  }
  writer.finish();
}

// Keys that all of a warpgroup's rows see.
template <typename Traits>
__device__ __forceinline__ void add_whole_step(float scale_log2, uint32_t stage, const KeptFragment<Traits>& queries,
                                               const KeptFragment<Traits>& grads, const WarpRows& rows,
                                               WarpSums<Traits>& sums) {
  float weights[8][4], gradients[8][4];
  begin_products();
  start_products<Traits>(KeptTile<Traits>{queries}, stage, weights);
  start_products<Traits>(KeptTile<Traits>{grads}, stage + Traits::kStageKeyBytes, gradients);
  wait_for_products<1>(weights);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) weights[j][e] = probability_of(scale_log2, rows.terms[e / 2], weights[j][e]);
  }
  wait_for_products<0>(gradients);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) gradients[j][e] = logit_gradient(rows.terms[e / 2], weights[j][e], gradients[j][e]);
  }
  const PackedWeights<Traits> of_keys(gradients);
  of_keys.start_adding(stage, sums);
  wait_for_products<0>(sums);
}

// The hull and the intersection of what a warpgroup's rows see. Rows behind the last do not count.
struct SeenByWarpgroup {
  QueryKeys any, all;

  __device__ __forceinline__ SeenByWarpgroup(const MaskedBackwardLaunch& launch, int first_row) {
    SeenByRows context = SeenByRows::none(), blocks = SeenByRows::none();
#pragma unroll
    for (int i = 0; i < kTileRows; i += kWarpLanes) {
      const int row = first_row + i + lane_index();
      if (row >= launch.rows) continue;
      context.add(seen_by_row(launch, row, false));
      blocks.add(seen_by_row(launch, row, true));
    }
    context = context.of_warp();
    blocks = blocks.of_warp();
    any = {context.any.begin, context.any.end, blocks.any.begin, blocks.any.end};
    all = {context.all.begin, context.all.end, blocks.all.begin, blocks.all.end};
  }
};

// An owning warpgroup: the sums of its 64 rows over all steps.
template <typename Traits>
__device__ __forceinline__ void add_steps(const MaskedBackwardLaunch& launch, const WarpRows& rows,
                                          const SeenByWarpgroup& seen, const SharedParts<Traits>& shared,
                                          WarpSums<Traits>& sums) {
  StageReader<Traits> reader(shared);
  StageMark mark = reader.mark();
  if (mark.first < 0) return;
  // Rows have landed with the first keys.
  KeptFragment<Traits> queries, grads;
  queries.load({shared.own(), Traits::warp()});
  grads.load({shared.own() + Traits::kKeyBytes, Traits::warp()});
  for (; mark.first >= 0; mark = reader.mark()) {
    const uint32_t stage = shared.stage(reader.stage());
    const KeyStretch keys{mark.first, mark.first + Traits::kStageKeys};
    if (overlap(stretch_of(seen.any, mark.of_blocks), keys)) {
      if (contains(stretch_of(seen.all, mark.of_blocks), keys)) {
        add_whole_step<Traits>(launch.scale_log2, stage, queries, grads, rows, sums);
      } else {
#pragma unroll 1
        for (int step = 0; step < Traits::kStageKeys; step += Traits::kStepKeys) {
          const int key = mark.first + step;
          if (!rows.sight(launch, mark.of_blocks, {key, key + Traits::kStepKeys}).some) continue;
          add_step<Traits, true>(launch, mark.of_blocks, key, stage + step * Traits::kBytesToRow, queries, grads, rows,
                                 sums);
        }
      }
    }
    reader.release();
  }
}

// Block (row tile, kv head).
template <typename Traits>
__device__ __forceinline__ void differentiate_queries_by_warpgroups(const MaskedBackwardLaunch& launch) {
  using T = typename Traits::T;
  extern __shared__ __align__(1024) unsigned char tiles[];
  const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
  const int tile = launch.tiles.row_schedule[blockIdx.x / kv_heads], kv_head = static_cast<int>(blockIdx.x % kv_heads);
  const SharedParts<Traits> shared{tiles};
  start_ring(shared);
  if (threadIdx.x < kWarpgroupThreads) {
    give_up_registers<kCopyingRegisters>();
    copy_steps<Traits>(launch, tile, kv_head, shared);
    return;
  }
  take_registers<kOwningRegisters>();
  const int first_row = tile * Traits::kRows;
  const WarpRows rows(launch, kv_head, first_row + Traits::warp() * 16);
  const SeenByWarpgroup seen(launch, first_row + Traits::warpgroup() * kTileRows);
  WarpSums<Traits> sums;
  clear_sums<Traits>(sums);
  add_steps<Traits>(launch, rows, seen, shared, sums);
  write_sums<Traits>(sums, launch.op.scale, [&](int half) -> T* {
    if (rows.row(half) >= launch.rows) return nullptr;
    return RowPlace(launch.tiles, kv_head, rows.row(half)).template in<T>(launch.op.grad_q);
  });
}

}  // namespace dflash::cuda
