#pragma once
#include "cuda/common/argmax.cuh"
#include "plan/cuda/row_argmax.h"

namespace dflash::cuda {

// Block (row, stretch).
template <typename T>
__device__ __forceinline__ void row_argmax(const RowArgmaxLaunch& launch) {
  const RowArgmaxParams& op = launch.op;
  const int64_t row = blockIdx.x;
  const ChunkedRow<T> logits(static_cast<const T*>(op.logits) + row * op.row_stride, op.columns);
  uint64_t best = stretch_best(logits, launch.rows, blockIdx.y);
  if (launch.rows.stretches > 1) {
    if (threadIdx.x == 0) launch.rows.stretch_best[row * launch.rows.stretches + blockIdx.y] = best;
    if (!last_to_arrive(launch.rows.arrivals + row, launch.rows.stretches)) return;
    if (threadIdx.x < kWarpLanes) best = merged_best(launch.rows, row);
  }
  if (threadIdx.x >= kWarpLanes) return;
  logits.resolve(best, [&](int64_t column, float value) {
    op.ids[row * op.ids_stride] = column;
    if (op.values != nullptr) op.values[row * op.values_stride] = value;
  });
}

}  // namespace dflash::cuda
