// Products of a warpgroup's 64 rows (of keys, or of queries) with a tile in shared memory, started and waited for.
#pragma once
#include "cuda/masked_block_attention_backward/tile.cuh"
#include "cuda/masked_block_attention_backward_sm90a/traits.cuh"

namespace dflash::cuda {

// 64 rows of a tile as a of wgmma.
struct SharedTile {
  uint32_t tile;

  template <typename Traits>
  __device__ __forceinline__ void multiply(int dim_block, uint64_t b, float (&products)[8][4]) const {
    multiply_tiles<typename Traits::T>(products, rows_of_tile(tile, dim_block), b, dim_block > 0);
  }
};

// The same, each warp's 16 of them kept in registers.
template <typename Traits_>
struct KeptTile {
  const KeptFragment<Traits_>& rows;

  template <typename Traits>
  __device__ __forceinline__ void multiply(int dim_block, uint64_t b, float (&products)[8][4]) const {
    multiply_tiles<typename Traits::T>(products, rows.words[dim_block], b, dim_block > 0);
  }
};

// Starts products = `a` x the tile's 64 rows, over channels.
template <typename Traits, typename Rows>
__device__ __forceinline__ void start_products(const Rows& a, uint32_t tile, float (&products)[8][4]) {
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    a.template multiply<Traits>(k, rows_of_tile(tile, k), products);
  }
  close_products();
}

// Weights (64 x 64, as wgmma leaves them) as a of the products that follow.
template <typename Traits>
struct PackedWeights {
  uint32_t words[4][4];

  __device__ __forceinline__ explicit PackedWeights(const float (&weights)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) pack_weights<Traits>(weights, k, words[k]);
    hold(words);
  }
  // Starts sums += weights x the tile's 64 rows.
  __device__ __forceinline__ void start_adding(uint32_t tile, WarpSums<Traits>& sums) const {
    hold(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) add_channels<typename Traits::T>(sums, words[k], channels_of_tile(tile, k));
    close_products();
  }
};

}  // namespace dflash::cuda
