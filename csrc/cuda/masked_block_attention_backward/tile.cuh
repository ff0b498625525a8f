// Products of a warp's 16 rows (of keys, or of queries) with a tile in shared memory.
//
// A tile that every row sees wholly carries no mask code. In one that is seen in part, probabilities and their
// gradients are selected to 0 where a row does not see a key, and products that sum over rows or keys take the tile's
// NaN and infinities as 0, because 0 * NaN would carry what belongs to another document into this one. What a row does
// see is NaN by way of its logit or of the gradient of its probability.
#pragma once
#include "cuda/masked_block_attention_backward/traits.cuh"

namespace dflash::cuda {

// a of mma, from where a warp's 16 rows lie.
template <typename Traits>
struct SharedFragment {
  uint32_t tile;
  int row_block;

  __device__ __forceinline__ void get(int dim_block, uint32_t (&fragment)[4]) const {
    load_matrices(fragment, TileAddress<Traits>::rows(tile, row_block, dim_block));
  }
};

// a of mma, kept.
template <typename Traits>
struct KeptFragment {
  uint32_t words[Traits::kDimBlocks][4];

  __device__ __forceinline__ void load(const SharedFragment<Traits>& from) {
#pragma unroll
    for (int k = 0; k < Traits::kDimBlocks; ++k) from.get(k, words[k]);
  }
  __device__ __forceinline__ void get(int dim_block, uint32_t (&fragment)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) fragment[e] = words[dim_block][e];
  }
};

// products = the 16 rows of `a` x those of the tile, kBlocks blocks of 16, over channels.
template <typename Traits, int kBlocks, typename Fragment>
__device__ __forceinline__ void multiply_rows(const Fragment& a, uint32_t tile, float (&products)[2 * kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < 2 * kBlocks; ++j) {
    products[j][0] = products[j][1] = products[j][2] = products[j][3] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    uint32_t rows[4];
    a.get(k, rows);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      uint32_t columns[4];
      load_matrices(columns, TileAddress<Traits>::keys(tile, j, k));
      Traits::multiply(products[2 * j], rows, columns[0], columns[1]);
      Traits::multiply(products[2 * j + 1], rows, columns[2], columns[3]);
    }
  }
}

// Two packed values, NaN and infinities as 0.
template <typename T>
__device__ __forceinline__ uint32_t finite_pair(uint32_t pair) {
  constexpr uint32_t kExponent = std::is_same_v<T, Float16> ? 0x7c00u : 0x7f80u;
  const bool low = (pair & kExponent) != kExponent, high = (pair >> 16 & kExponent) != kExponent;
  return (low ? pair & 0xffffu : 0u) | (high ? pair & 0xffff0000u : 0u);
}

// sums += weights (16 x 16 * kBlocks, as multiply_rows leaves them) x the tile's rows.
template <typename Traits, int kBlocks, bool kMasked>
__device__ __forceinline__ void add_rows(const float (&weights)[2 * kBlocks][4], uint32_t tile,
                                         WarpSums<Traits>& sums) {
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    uint32_t packed[4];
    pack_weights<Traits>(weights, k, packed);
#pragma unroll
    for (int j = 0; j < Traits::kDimBlocks; ++j) {
      uint32_t values[4];
      load_matrices_transposed(values, TileAddress<Traits>::rows(tile, k, j));
      if (kMasked) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = finite_pair<typename Traits::T>(values[e]);
      }
      Traits::multiply(sums[2 * j], packed, values[0], values[1]);
      Traits::multiply(sums[2 * j + 1], packed, values[2], values[3]);
    }
  }
}

// The probability of a key, whose product with the row's query is given.
__device__ __forceinline__ float probability_of(float scale_log2, const MaskedRowTerms& row, float product) {
  return exp2_approximate(fmaf(product, scale_log2, -row.lse));
}
// The gradient of its logit (before the scale), from that of its probability: the row's grad_out times the value.
__device__ __forceinline__ float logit_gradient(const MaskedRowTerms& row, float probability, float gradient) {
  return probability * (gradient - row.delta);
}
// Both in place of the products.
template <bool kMasked>
__device__ __forceinline__ void differentiate_softmax(float scale_log2, const MaskedRowTerms& row, bool visible,
                                                      float& weight, float& gradient) {
  const float of_weight = gradient;
  weight = probability_of(scale_log2, row, weight);
  gradient = logit_gradient(row, weight, of_weight);
  if (kMasked) {
    // Sums over rows take a NaN of grad_out as 0: it comes in here.
    weight = visible ? fmaf(of_weight, 0.0f, weight) : 0.0f;
    gradient = visible ? gradient : 0.0f;
  }
}

}  // namespace dflash::cuda
