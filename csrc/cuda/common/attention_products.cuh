// The two products of attention on tensor cores: queries and keys, weights and values. See
// docs/kernels/block_attention.md for the data's way.
#pragma once
#include "cuda/common/attention_rows.cuh"

namespace dflash::cuda {

// Addresses of the matrices that ldmatrix takes from a tile: where lane i's row lies.
template <typename Traits>
struct TileAddress {
  // Two 8 x 8 matrices of 8 keys, one chunk after the other, then those of the next 8 keys: the two halves of b of mma,
  // for two blocks of 8 keys.
  static __device__ __forceinline__ uint32_t keys(uint32_t tile, int key_block, int dim_block) {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    return tile + Traits::place(key_block * 16 + lane / 16 * 8 + lane % 8, dim_block * 2 + lane / 8 % 2);
  }
  // 16 rows of one chunk, then of the next: a of mma as it is for queries; transposed, b for two blocks of 8 channels.
  static __device__ __forceinline__ uint32_t rows(uint32_t tile, int row_block, int dim_block) {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    return tile + Traits::place(row_block * 16 + lane % 16, dim_block * 2 + lane / 16);
  }
};

// A warp's queries: fragments in registers, or where they lie.
template <typename Traits>
class Queries {
 public:
  __device__ __forceinline__ explicit Queries(uint32_t tile) : tile_(tile) {}

  // Once they have landed in shared memory.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
      for (int k = 0; k < Traits::kKeptQueries; ++k) load_matrices(kept_[i][k], address(i, k));
    }
  }
  __device__ __forceinline__ void get(int row_block, int dim_block, uint32_t (&fragment)[4]) const {
    if (dim_block < Traits::kKeptQueries) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fragment[e] = kept_[row_block][dim_block][e];
    } else {
      load_matrices(fragment, address(row_block, dim_block));
    }
  }

 private:
  __device__ __forceinline__ uint32_t address(int row_block, int dim_block) const {
    return TileAddress<Traits>::rows(tile_, Traits::row_block(row_block), dim_block);
  }

  uint32_t tile_;
  uint32_t kept_[Traits::kRowBlocks][Traits::kKeptQueries == 0 ? 1 : Traits::kKeptQueries][4];
};

// Says of a block of 16 keys that a row of the warp may see one of them. The same in all lanes.
struct AllKeys {
  __device__ __forceinline__ bool operator()(int) const { return true; }
};

template <typename Traits, int kActive>
__device__ __forceinline__ void clear_scores(Scores<Traits>& scores) {
#pragma unroll
  for (int i = 0; i < kActive; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
      scores[i][j][0] = scores[i][j][1] = scores[i][j][2] = scores[i][j][3] = 0.0f;
    }
  }
}

// scores = queries x keys; zero where the keys are not seen.
template <typename Traits, int kActive, typename Seen = AllKeys>
__device__ __forceinline__ void multiply_keys(const Queries<Traits>& queries, uint32_t tile, Scores<Traits>& scores,
                                              const Seen& seen = {}) {
  clear_scores<Traits, kActive>(scores);
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    uint32_t q[kActive][4];
#pragma unroll
    for (int i = 0; i < kActive; ++i) queries.get(i, k, q[i]);
#pragma unroll
    for (int j = 0; j < Traits::kKeyBlocks; ++j) {
      if (!seen(j)) continue;
      uint32_t keys[4];
      load_matrices(keys, TileAddress<Traits>::keys(tile, j, k));
#pragma unroll
      for (int i = 0; i < kActive; ++i) {
        Traits::multiply(scores[i][2 * j], q[i], keys[0], keys[1]);
        Traits::multiply(scores[i][2 * j + 1], q[i], keys[2], keys[3]);
      }
    }
  }
}

// A row block's weights of 16 keys, as mma left them, are a of the next mma.
template <typename Traits, int kCount>
__device__ __forceinline__ void pack_weights(const float (&weights)[kCount][4], int key_block, uint32_t (&a)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float (&pair)[4] = weights[2 * key_block + e / 2];
    a[e] = Traits::pack(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
  }
}

// sums += weights x values; the weights of keys that are not seen are zero.
template <typename Traits, int kActive, typename Seen = AllKeys>
__device__ __forceinline__ void add_values(const Scores<Traits>& weights, uint32_t tile, RowSums<Traits>& sums,
                                           const Seen& seen = {}) {
#pragma unroll
  for (int k = 0; k < Traits::kKeyBlocks; ++k) {
    if (!seen(k)) continue;
    uint32_t w[kActive][4];
#pragma unroll
    for (int i = 0; i < kActive; ++i) pack_weights<Traits>(weights[i], k, w[i]);
#pragma unroll
    for (int j = 0; j < Traits::kDimBlocks; ++j) {
      uint32_t values[4];
      load_matrices_transposed(values, TileAddress<Traits>::rows(tile, k, j));
#pragma unroll
      for (int i = 0; i < kActive; ++i) {
        Traits::multiply(sums.values[i][2 * j], w[i], values[0], values[1]);
        Traits::multiply(sums.values[i][2 * j + 1], w[i], values[2], values[3]);
      }
    }
  }
}

}  // namespace dflash::cuda
