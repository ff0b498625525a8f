// Gradients of a row tile's queries, over all keys that one of them sees: grad_q = scale * dS . k.
#pragma once
#include "cuda/masked_block_attention_backward/copy.cuh"
#include "cuda/masked_block_attention_backward/tile.cuh"

namespace dflash::cuda {

// A warp's 16 rows: what a lane keeps of its two.
struct WarpRows {
  int first;
  MaskedRowTerms terms[2];

  __device__ __forceinline__ WarpRows(const MaskedBackwardLaunch& launch, int kv_head, int first_row)
      : first(first_row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) terms[half] = terms_of_head(launch, kv_head)[row(half)];
  }
  __device__ __forceinline__ Sight sight(const MaskedBackwardLaunch& launch, bool of_blocks,
                                         const KeyStretch& keys) const {
    return sight_of_rows<16>(launch, first, keys, [&](int i) { return seen_by_row(launch, first + i, of_blocks); });
  }
  __device__ __forceinline__ int row(int half) const { return first + lane_index() / 4 + 8 * half; }
};

// kStepKeys keys from `first_key` on, in `stage`. `masked`: some row does not see some of them.
template <typename Traits, bool kMasked>
__device__ __forceinline__ void add_step(const MaskedBackwardLaunch& launch, bool of_blocks, int first_key,
                                         uint32_t stage, const KeptFragment<Traits>& queries,
                                         const KeptFragment<Traits>& grads, const WarpRows& rows,
                                         WarpSums<Traits>& sums) {
  constexpr int kBlocks = Traits::kStepKeys / 16;
  float weights[2 * kBlocks][4], gradients[2 * kBlocks][4];
  multiply_rows<Traits, kBlocks>(queries, stage, weights);
  multiply_rows<Traits, kBlocks>(grads, stage + Traits::kStageKeyBytes, gradients);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KeyStretch seen = kMasked ? seen_by_row(launch, rows.row(half), of_blocks) : KeyStretch{0, 0};
#pragma unroll
    for (int j = 0; j < 2 * kBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = first_key + lane_index() % 4 * 2 + 8 * j + e;
        differentiate_softmax<kMasked>(launch.scale_log2, rows.terms[half], key >= seen.begin && key < seen.end,
                                       weights[j][2 * half + e], gradients[j][2 * half + e]);
      }
    }
  }
  add_rows<Traits, kBlocks, kMasked>(gradients, stage, sums);
}

// Block (row tile, kv head); row tiles come in the order of the schedule, costliest first.
template <typename Traits>
__device__ __forceinline__ void differentiate_queries(const MaskedBackwardLaunch& launch) {
  using T = typename Traits::T;
  extern __shared__ uint4 shared[];
  const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
  const int tile = launch.tiles.row_schedule[blockIdx.x / kv_heads], kv_head = static_cast<int>(blockIdx.x % kv_heads);
  const int first_row = tile * Traits::kRows;
  const uint32_t first_stage = shared_address(shared);
  const WarpRows rows(launch, kv_head, first_row + Traits::warp() * 16);

  const RowTile seen = launch.tiles.row_tiles[tile];
  const KeyTileWalk walk(launch.tiles, seen.seen);
  // Live ones only, by number.
  const auto live_from = [&](int i) {
    while (seen.gaps != 0 && i < walk.count() && !is_live(launch.tiles, tile, seen, walk.tile(i))) ++i;
    return i;
  };
  int number = live_from(0);
  WarpSums<Traits> sums;
  clear_sums<Traits>(sums);
  if (number < walk.count()) {
    // Rows pass through the second stage, which the first key tile leaves free.
    const uint32_t second_stage = first_stage + Traits::kKeyStageBytes;
    copy_rows<Traits, Traits::kRows>(launch, kv_head, first_row, second_stage);
    copy_keys<Traits, Traits::kKeys>(launch, kv_head, walk.tile(number), 0, first_stage);
    close_copy_group();
    wait_for_copy_groups<0>();
    __syncthreads();
    KeptFragment<Traits> queries, grads;
    queries.load({second_stage, Traits::warp()});
    grads.load({second_stage + Traits::kRows * Traits::kRowBytes, Traits::warp()});
    uint32_t stage = 0;  // 0 or 1
    while (number < walk.count()) {
      const int key_tile = walk.tile(number);
      number = live_from(number + 1);
      wait_for_copy_groups<0>();
      __syncthreads();  // every thread's copies have landed, and no warp reads the other stage
      if (number < walk.count()) {
        copy_keys<Traits, Traits::kKeys>(launch, kv_head, walk.tile(number), 0,
                                         first_stage + (stage ^ 1) * Traits::kKeyStageBytes);
      }
      close_copy_group();
      const uint32_t from = first_stage + stage * Traits::kKeyStageBytes;
      const bool of_blocks = holds_blocks(launch.tiles, key_tile);
      const int first_key = keys_of_tile(launch.tiles, key_tile).begin;
#pragma unroll 1
      for (int step = 0; step < Traits::kKeys; step += Traits::kStepKeys) {
        const int key = first_key + step;
        const Sight sight = rows.sight(launch, of_blocks, {key, key + Traits::kStepKeys});
        const uint32_t keys = from + step * Traits::kRowBytes;
        if (sight.some && sight.all) {
          add_step<Traits, false>(launch, of_blocks, key, keys, queries, grads, rows, sums);
        } else if (sight.some) {
          add_step<Traits, true>(launch, of_blocks, key, keys, queries, grads, rows, sums);
        }
      }
      stage ^= 1;
    }
  }
  write_sums<Traits>(sums, launch.op.scale, [&](int half) -> T* {
    if (rows.row(half) >= launch.rows) return nullptr;
    return RowPlace(launch.tiles, kv_head, rows.row(half)).template in<T>(launch.op.grad_q);
  });
}

}  // namespace dflash::cuda
