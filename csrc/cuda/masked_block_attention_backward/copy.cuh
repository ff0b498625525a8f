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
__device__ __forceinline__ void copy_rows(const MaskedBackwardLaunch& launch, int kv_head, int first, uint32_t to) {
  using T = typename Traits::T;
#pragma unroll
  for (int step = 0; step < kCount; step += Traits::kThreads / Traits::kRowLanes) {
    const int of_tile = step + static_cast<int>(threadIdx.x) / Traits::kRowLanes, row = first + of_tile;
    const bool present = row < launch.rows;
    const RowPlace place(launch.tiles, kv_head, present ? row : 0);
    copy_row<Traits>(place.in<const T>(launch.op.q), present, of_tile, to);
    copy_row<Traits>(place.in<const T>(launch.op.grad_out), present, of_tile, to + kCount * Traits::kRowBytes);
  }
}

// kCount of a key tile's keys, from number `first` of them on, and their values behind them.
template <typename Traits, int kCount>
__device__ __forceinline__ void copy_keys(const MaskedBackwardLaunch& launch, int kv_head, int key_tile, int first,
                                          uint32_t to) {
  using T = typename Traits::T;
  const bool of_blocks = holds_blocks(launch.tiles, key_tile);
  const KeyStretch keys = keys_of_tile(launch.tiles, key_tile);
#pragma unroll
  for (int step = 0; step < kCount; step += Traits::kThreads / Traits::kRowLanes) {
    const int of_tile = step + static_cast<int>(threadIdx.x) / Traits::kRowLanes, key = keys.begin + first + of_tile;
    const bool present = key < keys.end;
    const uint32_t row = key_row(launch.tiles, of_blocks, static_cast<uint32_t>(present ? key : keys.begin));
    const auto source = [&](const HeadRows& tensor) {
      return static_cast<const T*>(tensor.data) + row * tensor.row_stride + kv_head * tensor.head_stride;
    };
    copy_row<Traits>(source(launch.op.k), present, of_tile, to);
    copy_row<Traits>(source(launch.op.v), present, of_tile, to + kCount * Traits::kRowBytes);
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
