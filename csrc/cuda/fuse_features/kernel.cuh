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
      float* const sums_row = launch.sums + (first_row + row) * launch.sums_row_stride +
                              tile.section * launch.sums_section_stride + tile.first;
      T* const out_row = static_cast<T*>(launch.op.out) + (first_row + row) * launch.op.out_row_stride + tile.first;
#pragma unroll
      for (uint32_t j = 0; j < kStreamWarpColumns / 8; ++j) {
        const float low = sums.value[g][j][i], high = sums.value[g][j][i + 1];
        const uint32_t column = StreamSums::column(j, 0);
        if (column >= tile.columns) continue;
        if (launch.sums != nullptr) {
          // Sections of sums end with a whole vector; past the columns lies a product with zeros that no one reads.
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
  overlap_earlier_launches(launch.op.gemm, launch.stream);
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

// The sum over the slices of the columns from `column` on, zeros past the last: rows of sums end with a whole vector.
template <int kElements>
__device__ __forceinline__ void load_sums(const FuseFeaturesLaunch& launch, const float* row, int64_t column,
                                          float (&x)[kElements]) {
  const int64_t columns = launch.op.gemm.weight.columns;
#pragma unroll
  for (int i = 0; i < kElements; ++i) x[i] = 0.0f;
  for (uint32_t slice = 0; slice < launch.slices; ++slice) {
#pragma unroll
    for (int first = 0; first < kElements; first += 4) {
      float y[4];
      load_elements(row + slice * launch.slice_stride + column + first, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[first + i] += column + first + i < columns ? y[i] : 0.0f;
    }
  }
}

// Block (row). Without a norm weight the sums are stored as they are.
template <typename T>
__device__ __forceinline__ void normalise_features(const FuseFeaturesLaunch& launch) {
  __shared__ float shared_scale;
  let_next_launch_start();
  wait_for_earlier_launches();
  const FuseFeaturesParams& op = launch.op;
  const int64_t row = launch.first_row + blockIdx.x, columns = op.gemm.weight.columns;
  if (row >= feature_rows(op)) return;
  const float* const sums = launch.sums + blockIdx.x * launch.sums_row_stride;
  const T* const weight = static_cast<const T*>(op.norm_weight);
  T* const out = static_cast<T*>(op.out) + row * op.out_row_stride;
  constexpr int kElements = kNormaliseElements;
  constexpr int64_t kStep = int64_t{kNormaliseThreads} * kElements;
  float scale = 1.0f;
  if (weight != nullptr) {
    float squares = 0.0f;
    for (int64_t first = int64_t{threadIdx.x} * kElements; first < columns; first += kStep) {
      float x[kElements];
      load_sums(launch, sums, first, x);
#pragma unroll
      for (int i = 0; i < kElements; ++i) squares += x[i] * x[i];
    }
    squares = block_reduce<kNormaliseThreads>(squares, 0.0f, Plus());
    if (threadIdx.x == 0) shared_scale = 1.0f / sqrtf(squares / static_cast<float>(columns) + op.eps);
    __syncthreads();
    scale = shared_scale;
  }
  for (int64_t first = int64_t{threadIdx.x} * kElements; first < columns; first += kStep) {
    float x[kElements], weights[kElements];
    load_sums(launch, sums, first, x);
    if (launch.wide) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) weights[i] = 1.0f;
      if (weight != nullptr) load_pieces(weight + first, weights);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] *= scale * weights[i];
      store_pieces(out + first, x);
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (first + i >= columns) break;
        const float of_column = weight == nullptr ? 1.0f : load_any(op.norm_weight, op.gemm.dtype, first + i);
        store_any(out, op.gemm.dtype, first + i, x[i] * scale * of_column);
      }
    }
  }
}

}  // namespace dflash::cuda
