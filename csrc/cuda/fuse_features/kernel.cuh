#pragma once
#include "cuda/common/head_access.cuh"
#include "cuda/common/weight_stream.cuh"
#include "plan/cuda/fuse_features.h"

namespace dflash::cuda {

// A tile's rows: float32 sums for the norm that follows, or the result itself.
template <typename T>
__device__ __forceinline__ void store_features(const FuseFeaturesLaunch& launch, int64_t first_row, uint32_t rows,
                                               uint32_t tile_index, const StreamSums& sums) {
  const StreamTile tile(launch.stream, tile_index);
#pragma unroll
  for (uint32_t g = 0; g < kStreamRowGroups; ++g) {
    if (g * kStreamRowGroup >= rows) break;
#pragma unroll
    for (uint32_t i = 0; i < 4; i += 2) {
      const uint32_t row = StreamSums::row(g, i);
      if (row >= rows) continue;
      float* const sums_row = launch.sums + (first_row + row) * launch.sums_row_stride + tile.first;
      T* const out_row = static_cast<T*>(launch.op.out) + (first_row + row) * launch.op.out_row_stride + tile.first;
#pragma unroll
      for (uint32_t j = 0; j < kStreamWarpColumns / 8; ++j) {
        const float low = sums.value[g][j][i], high = sums.value[g][j][i + 1];
        const uint32_t column = StreamSums::column(j, 0);
        if (column >= tile.columns) continue;
        if (launch.sums != nullptr) {
          // Rows of sums end with a whole vector; past the columns lies a product with zeros that no one reads.
          *reinterpret_cast<float2*>(sums_row + column) = make_float2(low, high);
        } else {
          const uint32_t packed = pack<T>(low, high);
          out_row[column].bits = static_cast<uint16_t>(packed);
          if (column + 1 < tile.columns) out_row[column + 1].bits = static_cast<uint16_t>(packed >> 16);
        }
      }
    }
  }
}

__device__ __forceinline__ int64_t feature_rows(const FuseFeaturesParams& op) {
  const int64_t rows = op.gemm.activations.rows;
  return op.row_count == nullptr ? rows : min(rows, static_cast<int64_t>(*op.row_count));
}

// Block (share, row tile).
template <typename T>
__device__ __forceinline__ void fuse_features(const FuseFeaturesLaunch& launch) {
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kStreamRows;
  const int64_t left = feature_rows(launch.op) - first_row;
  if (left <= 0) return;
  const uint32_t rows = static_cast<uint32_t>(min(left, static_cast<int64_t>(kStreamRows)));
  stream_weights<T>(launch.op.gemm, launch.stream, first_row, rows, [&](uint32_t tile, const StreamSums& sums) {
    store_features<T>(launch, first_row, rows, tile, sums);
  });
}

struct Plus {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// Block (row).
template <typename T>
__device__ __forceinline__ void normalise_features(const FuseFeaturesLaunch& launch) {
  __shared__ float shared_scale;
  const FuseFeaturesParams& op = launch.op;
  const int64_t row = blockIdx.x, columns = op.gemm.weight.columns;
  if (row >= feature_rows(op)) return;
  const float* const sums = launch.sums + row * launch.sums_row_stride;
  const T* const weight = static_cast<const T*>(op.norm_weight);
  T* const out = static_cast<T*>(op.out) + row * op.out_row_stride;
  constexpr int kElements = kNormaliseElements;
  constexpr int64_t kStep = int64_t{kNormaliseThreads} * kElements;
  float squares = 0.0f;
  for (int64_t first = int64_t{threadIdx.x} * kElements; first < columns; first += kStep) {
    float x[kElements / 2], y[kElements / 2];
    load_elements(sums + first, x);
    load_elements(sums + first + kElements / 2, y);
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) {
      squares += first + i < columns ? x[i] * x[i] : 0.0f;
      squares += first + kElements / 2 + i < columns ? y[i] * y[i] : 0.0f;
    }
  }
  squares = block_reduce<kNormaliseThreads>(squares, 0.0f, Plus());
  if (threadIdx.x == 0) shared_scale = 1.0f / sqrtf(squares / static_cast<float>(columns) + op.eps);
  __syncthreads();
  const float scale = shared_scale;
  if (launch.wide) {
    for (int64_t first = int64_t{threadIdx.x} * kElements; first < columns; first += kStep) {
      float x[kElements / 2], y[kElements / 2], weights[kElements], normed[kElements];
      load_elements(sums + first, x);
      load_elements(sums + first + kElements / 2, y);
      load_elements(weight + first, weights);
#pragma unroll
      for (int i = 0; i < kElements / 2; ++i) {
        normed[i] = x[i] * scale * weights[i];
        normed[kElements / 2 + i] = y[i] * scale * weights[kElements / 2 + i];
      }
      store_elements(out + first, normed);
    }
  } else {
    for (int64_t column = threadIdx.x; column < columns; column += kNormaliseThreads) {
      const float normed = sums[column] * scale * to_float(weight[column]);
      out[column].bits = static_cast<uint16_t>(pack<T>(normed, 0.0f));
    }
  }
}

}  // namespace dflash::cuda
