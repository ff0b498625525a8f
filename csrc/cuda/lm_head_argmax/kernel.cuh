#pragma once
#include "cuda/common/argmax.cuh"
#include "cuda/common/weight_stream.cuh"
#include "plan/cuda/lm_head_argmax.h"

namespace dflash::cuda {

// The best logit of each row and warp so far, as best_of() orders them with the column in the chunk's place.
using WarpBests = uint64_t[kStreamWarps][kStreamRows];

// Takes a tile's logits into account, which then are gone.
__device__ __forceinline__ void keep_best(const WeightStream& stream, uint32_t tile_index, uint32_t rows,
                                          const StreamSums& sums, WarpBests& bests) {
  const StreamTile tile(stream, tile_index);
  uint64_t* const of_warp = bests[threadIdx.x / kWarpLanes];
#pragma unroll
  for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
    if (g * kStreamRowGroup >= rows) break;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint64_t best = 0;
#pragma unroll
      for (uint32_t j = 0; j < kStreamWarpColumns / 8; ++j) {
#pragma unroll
        for (uint32_t i = 2 * half; i < 2 * half + 2; ++i) {
          const uint32_t column = StreamSums::column(j, i);
          if (column < tile.columns) best = Larger()(best, best_of(sums.value[g][j][i], tile.first + column));
        }
      }
      // The four lanes that hold a row.
      best = Larger()(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = Larger()(best, __shfl_xor_sync(kAllLanes, best, 2));
      const uint32_t row = StreamSums::row(g, 2 * half);
      if (threadIdx.x % 4 == 0) of_warp[row] = Larger()(of_warp[row], best);
    }
  }
}

// Of row threadIdx.x, in its thread: the best of all shares, [shares][kStreamRows]. Where rows are few, several threads
// take a row's shares in turns.
__device__ __forceinline__ uint64_t best_of_shares(const uint64_t* shares_bests, uint32_t shares, uint32_t rows,
                                                   WarpBests& bests) {
  uint32_t width = kStreamRowGroup;
  while (width < rows) width *= 2;
  const uint32_t row = threadIdx.x % width, parts = kStreamThreads / width;
  uint64_t best = 0;
  if (row < rows) {
#pragma unroll 8
    for (uint32_t share = threadIdx.x / width; share < shares; share += parts) {
      best = Larger()(best, shares_bests[share * kStreamRows + row]);
    }
  }
  bests[0][threadIdx.x] = best;
  __syncthreads();
  for (uint32_t part = 1; part < parts; ++part) {
    if (threadIdx.x < width) best = Larger()(best, bests[0][part * width + threadIdx.x]);
  }
  return best;
}

// Block (share, row tile). Every block leaves its rows' bests in the workspace; the last one of a row tile writes the
// result.
template <typename T>
__device__ __forceinline__ void lm_head_argmax(const LmHeadArgmaxLaunch& launch) {
  __shared__ WarpBests bests;
  overlap_earlier_launches(launch.op.gemm, launch.stream);
  const LmHeadArgmaxParams& op = launch.op;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kStreamRows;
  const uint32_t rows =
      static_cast<uint32_t>(min(op.gemm.activations.rows - first_row, static_cast<int64_t>(kStreamRows)));
#pragma unroll
  for (uint32_t warp = 0; warp < kStreamWarps; ++warp) bests[warp][threadIdx.x] = 0;
  // The barrier of the first unit lies between this and the first tile.
  stream_weights<T>(op.gemm, launch.stream, first_row, rows,
                    [&](uint32_t tile, const StreamSums& sums) { keep_best(launch.stream, tile, rows, sums, bests); });
  __syncthreads();
  uint64_t* const of_shares = launch.bests + static_cast<int64_t>(blockIdx.y) * gridDim.x * kStreamRows;
  if (threadIdx.x < rows) {
    uint64_t best = bests[0][threadIdx.x];
#pragma unroll
    for (uint32_t warp = 1; warp < kStreamWarps; ++warp) best = Larger()(best, bests[warp][threadIdx.x]);
    of_shares[blockIdx.x * kStreamRows + threadIdx.x] = best;
  }
  __syncthreads();
  if (!last_to_arrive(launch.row_arrivals + blockIdx.y, gridDim.x)) return;
  const uint64_t best = best_of_shares(of_shares, gridDim.x, rows, bests);
  if (threadIdx.x >= rows) return;
  const int64_t row = first_row + threadIdx.x;
  op.ids[row * op.ids_stride] = op.vocab_offset + chunk_of(best);
  if (op.values == nullptr) return;
  const float value = value_of(best);
  // An increasing function: it changes the value, not which one is the largest.
  op.values[row * op.values_stride] = op.softcap > 0 ? op.softcap * tanhf(value / op.softcap) : value;
}

}  // namespace dflash::cuda
