// The way of rows and keys to shared memory.
#pragma once
#include "cuda/masked_block_attention_backward/traits.cuh"

namespace dflash::cuda {

// Copies a row's 16-byte chunks, kRowLanes lanes side by side; zeros where it is not `present`.
template <typename Traits>
__device__ __forceinline__ void copy_row(const typename Traits::T* row, bool present, int of_tile, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % Traits::kRowLanes;
#pragma unroll
  for (int chunk = 0; chunk < Traits::kChunks; chunk += Traits::kRowLanes) {
    copy_16_bytes_async(to + Traits::place(of_tile, chunk + lane), reinterpret_cast<const uint4*>(row) + chunk + lane,
                        present);
  }
}

// Queries and gradients of outputs of kCount rows from `first` on, the latter behind the former.
template <typename Traits, int kCount>
__device__ __forceinline__ void copy_rows(const MaskedBackwardLaunch& launch, int head, int first, uint32_t to) {
  using T = typename Traits::T;
#pragma unroll
  for (int of_tile = static_cast<int>(threadIdx.x) / Traits::kRowLanes; of_tile < kCount;
       of_tile += Traits::kThreads / Traits::kRowLanes) {
    const bool present = first + of_tile < launch.rows;
    const int row = present ? first + of_tile : 0;
    copy_row<Traits>(row_of_head<const T>(launch, launch.op.q, head, row), present, of_tile, to);
    copy_row<Traits>(row_of_head<const T>(launch, launch.op.grad_out, head, row), present, of_tile,
                     to + kCount * Traits::kRowBytes);
  }
}

// A key tile's keys, and its values behind them.
template <typename Traits>
__device__ __forceinline__ void copy_keys(const MaskedBackwardLaunch& launch, int head, int tile, uint32_t to) {
  using T = typename Traits::T;
#pragma unroll
  for (int of_tile = static_cast<int>(threadIdx.x) / Traits::kRowLanes; of_tile < Traits::kKeys;
       of_tile += Traits::kThreads / Traits::kRowLanes) {
    const int wanted = tile * Traits::kKeys + of_tile;
    const bool present = wanted < launch.op.keys;
    const int key = present ? wanted : 0;
    copy_row<Traits>(key_of_head<const T>(launch.op.k, head, key), present, of_tile, to);
    copy_row<Traits>(key_of_head<const T>(launch.op.v, head, key), present, of_tile, to + Traits::kKeyBytes);
  }
}

// Writes a warp's sums as 16 rows of 16-bit values; `target(half)` is the row of a lane's half, null where there is
// none.
template <typename Traits, typename Target>
__device__ __forceinline__ void write_sums(const WarpSums<Traits>& sums, float factor, const Target& target) {
  const int lane = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    typename Traits::T* const row = target(half);
#pragma unroll
    for (int j = 0; j < Traits::kSumBlocks; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float (&quad)[4] = sums[j + c];
        words[c] = Traits::pack(quad[2 * half] * factor, quad[2 * half + 1] * factor);
      }
      gather_chunk(words);
      if (row != nullptr) reinterpret_cast<uint4*>(row)[j + lane] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace dflash::cuda
