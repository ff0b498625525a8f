// Gradients of a row tile's queries, over all keys that one of them sees: grad_q = scale * dS . k.
#pragma once
#include "cuda/masked_block_attention_backward/copy.cuh"
#include "cuda/masked_block_attention_backward/tile.cuh"

namespace dflash::cuda {

// The key tiles with a key that a row of the tile sees: those of the context, then those of the blocks' keys.
class KeyWalk {
 public:
  __device__ __forceinline__ KeyWalk(const MaskedKeys& keys, int tile_keys) {
    const bool context = keys.context_begin < keys.context_end, blocks = keys.block_begin < keys.block_end;
    tile_ = context ? keys.context_begin / tile_keys : kLastKey;
    context_end_ = context ? (keys.context_end + tile_keys - 1) / tile_keys : 0;
    // The first tile of the blocks' keys may hold the last ones of the context.
    block_begin_ = blocks ? max(keys.block_begin / tile_keys, context_end_) : kLastKey;
    block_end_ = blocks ? (keys.block_end + tile_keys - 1) / tile_keys : 0;
    if (!context && block_begin_ < block_end_) tile_ = block_begin_;
  }

  // kLastKey behind the last one.
  __device__ __forceinline__ int next() {
    const int tile = tile_;
    if (tile != kLastKey) {
      ++tile_;
      if (tile_ == context_end_) tile_ = block_begin_ < block_end_ ? block_begin_ : kLastKey;
      if (tile_ == block_end_) tile_ = kLastKey;
    }
    return tile;
  }

 private:
  int tile_, context_end_, block_begin_, block_end_;
};

// A lane's two rows of a warp's 16.
class LaneRows {
 public:
  __device__ __forceinline__ LaneRows(const MaskedBackwardLaunch& launch, int head, int first_row, int tile_rows)
      : launch_(launch), first_(first_row + static_cast<int>(threadIdx.x % kWarpLanes) / 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      terms_[half] = present(half) ? terms_of_head(launch, head, tile_rows)[row(half)] : MaskedRowTerms{INFINITY, 0.0f};
    }
  }
  __device__ __forceinline__ int row(int half) const { return first_ + 8 * half; }
  __device__ __forceinline__ bool present(int half) const { return row(half) < launch_.rows; }
  __device__ __forceinline__ const MaskedRowTerms& terms(int half) const { return terms_[half]; }
  // Read where a tile is masked, which is rare, so that it takes no registers in between. Nothing for a row that does
  // not exist.
  __device__ __forceinline__ MaskedKeys visible(int half) const {
    return present(half) ? launch_.query_keys[row(half) / launch_.group] : MaskedKeys{};
  }

 private:
  const MaskedBackwardLaunch& launch_;
  int first_;
  MaskedRowTerms terms_[2];
};

template <typename Traits, bool kMasked>
__device__ __forceinline__ void add_key_tile(const MaskedBackwardLaunch& launch, int first_key, uint32_t stage,
                                             const KeptFragment<Traits>& queries, const KeptFragment<Traits>& grads,
                                             const LaneRows& rows, WarpSums<Traits>& sums) {
  constexpr int kBlocks = Traits::kKeys / 16;
  const int lane_key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
  float weights[2 * kBlocks][4], gradients[2 * kBlocks][4];
  multiply_rows<Traits, kBlocks>(queries, stage, weights);
  multiply_rows<Traits, kBlocks>(grads, stage + Traits::kKeyBytes, gradients);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const MaskedKeys visible = kMasked ? rows.visible(half) : MaskedKeys{};
#pragma unroll
    for (int j = 0; j < 2 * kBlocks; ++j) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        differentiate_softmax<kMasked>(launch.scale_log2, rows.terms(half), sees(visible, lane_key + 8 * j + e % 2),
                                       weights[j][e], gradients[j][e]);
      }
    }
  }
  add_rows<Traits, kBlocks, kMasked>(gradients, stage, sums);
}

// Block (row tile, kv head).
template <typename Traits>
__device__ __forceinline__ void differentiate_queries(const MaskedBackwardLaunch& launch) {
  using T = typename Traits::T;
  extern __shared__ uint4 shared[];
  constexpr int kTiles = Traits::kQueryRows / Traits::kRows;
  // Later rows see more in most masks: they start first.
  const int tile = launch.query_tiles - 1 - tile_of_block(launch), head = head_of_block(launch);
  const int first_row = tile * Traits::kQueryRows, warp = static_cast<int>(threadIdx.x / kWarpLanes);
  const uint32_t first_stage = shared_address(shared);

  MaskedKeys keys = no_rows().any;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (tile * kTiles + i < launch.row_tiles) keys = either(keys, launch.tile_keys[tile * kTiles + i].any);
  }
  const LaneRows rows(launch, head, first_row + warp * 16, Traits::kRows);
  MaskedTileKeys of_warp = no_rows();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.present(half)) add_row(of_warp, rows.visible(half));
  }
  of_warp = over_lanes(of_warp);

  // Rows pass through the second stage, which the first key tile leaves free.
  KeyWalk walk(keys, Traits::kKeys);
  int key_tile = walk.next();
  WarpSums<Traits> sums;
  clear_sums<Traits>(sums);
  if (key_tile != kLastKey) {
    const uint32_t second_stage = first_stage + Traits::kKeyStageBytes;
    copy_rows<Traits, Traits::kQueryRows>(launch, head, first_row, second_stage);
    copy_keys<Traits>(launch, head, key_tile, first_stage);
    close_copy_group();
    wait_for_copy_groups<0>();
    __syncthreads();
    KeptFragment<Traits> queries, grads;
    queries.load({second_stage, warp});
    grads.load({second_stage + Traits::kQueryRows * Traits::kRowBytes, warp});
    uint32_t stage_number = 0;
    while (key_tile != kLastKey) {
      const int next = walk.next();
      wait_for_copy_groups<0>();
      __syncthreads();  // every thread's copies have landed, and no warp reads the other stage
      if (next != kLastKey) {
        copy_keys<Traits>(launch, head, next, first_stage + (stage_number ^ 1) * Traits::kKeyStageBytes);
      }
      close_copy_group();
      const int first_key = key_tile * Traits::kKeys, end_key = first_key + Traits::kKeys;
      const uint32_t stage = first_stage + stage_number * Traits::kKeyStageBytes;
      if (meets(of_warp.any, first_key, end_key)) {
        if (covers(of_warp.all, first_key, end_key)) {
          add_key_tile<Traits, false>(launch, first_key, stage, queries, grads, rows, sums);
        } else {
          add_key_tile<Traits, true>(launch, first_key, stage, queries, grads, rows, sums);
        }
      }
      key_tile = next;
      stage_number ^= 1;
    }
  }
  write_sums<Traits>(sums, launch.op.scale, [&](int half) -> T* {
    return rows.present(half) ? row_of_head<T>(launch, launch.op.grad_q, head, rows.row(half)) : nullptr;
  });
}

}  // namespace dflash::cuda
