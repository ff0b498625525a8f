#pragma once
#include "cuda/remask/scan.cuh"
#include "plan/cuda/remask.h"

namespace dflash::cuda {

__device__ __forceinline__ bool is_masked(const RemaskParams& op, int64_t request, int64_t position) {
  return op.tokens[request * op.tokens_stride + position] == op.mask_token_id;
}

// Larger where the choice is more confident; a NaN is least; equal ones go to the lower position.
__device__ __forceinline__ uint64_t choice_key(float confidence, int64_t position) {
  const uint32_t rank = confidence == confidence ? __float_as_uint(confidence) + 1 : 0;
  return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
}

// For a whole warp: choice, key and confidence of a position whose blocks have arrived.
template <typename T>
__device__ __forceinline__ void choose(const RemaskLaunch& launch, const SoftmaxRow<T>& logits, int64_t request,
                                       int64_t position) {
  const RemaskParams& op = launch.op;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t row = request * op.positions + position;
  float confidence = 0.0f;
  uint64_t key = 0;
  if (is_masked(op, request, position)) {
    const uint64_t best = merged_best(launch.rows, row);
    float sum = 0.0f;
    for (uint32_t i = lane; i < launch.rows.stretches; i += kWarpLanes) {
      const int64_t at = row * launch.rows.stretches + i;
      sum += rescaled({launch.rows.stretch_best[at], launch.stretch_sums[at]}, best);
    }
    sum = warp_reduce(sum, Sum());
    const float value = value_of(best);
    confidence = fabsf(value) < __builtin_inff() ? 1.0f / sum : __uint_as_float(0x7fffffffu);
    key = choice_key(confidence, position);
    const int64_t choice = logits.resolve(best);
    if (lane == 0) launch.choices[row] = choice;
  }
  if (lane != 0) return;
  launch.keys[row] = key;
  if (op.confidence != nullptr) op.confidence[request * op.confidence_stride + position] = confidence;
}

// Block (position of all requests, stretch); the last block of a request to arrive ranks its positions.
template <typename T>
__device__ __forceinline__ void remask(const RemaskLaunch& launch) {
  const RemaskParams& op = launch.op;
  const uint32_t positions = static_cast<uint32_t>(op.positions);
  const uint32_t request = blockIdx.x / positions;
  const T* logits = static_cast<const T*>(op.logits) + request * op.logits_batch_stride;
  const auto row_of_position = [&](int64_t position) {
    return SoftmaxRow<T>(logits + position * op.logits_row_stride, op.vocabulary, op.mask_token_id);
  };
  const uint32_t own_position = blockIdx.x % positions;
  if (is_masked(op, request, own_position)) {
    const uint32_t begin = blockIdx.y * launch.rows.stretch_chunks;
    const SoftmaxPart part =
        block_part(row_of_position(own_position).thread_part(begin, begin + launch.rows.stretch_chunks));
    if (threadIdx.x == 0) {
      const int64_t at = static_cast<int64_t>(blockIdx.x) * launch.rows.stretches + blockIdx.y;
      launch.rows.stretch_best[at] = part.best;
      launch.stretch_sums[at] = part.sum;
    }
  }
  if (!last_to_arrive(launch.rows.arrivals + request, positions * launch.rows.stretches)) return;

  for (uint32_t position = threadIdx.x / kWarpLanes; position < positions; position += kArgmaxThreads / kWarpLanes) {
    choose(launch, row_of_position(position), request, position);
  }
  __syncthreads();
  const int64_t keep = op.keep[request * op.keep_stride];
  const uint64_t* keys = launch.keys + static_cast<int64_t>(request) * positions;
  for (uint32_t position = threadIdx.x; position < positions; position += kArgmaxThreads) {
    const uint64_t key = keys[position];
    if (key == 0) continue;
    int64_t more_confident = 0;
    for (uint32_t other = 0; other < positions; ++other) more_confident += keys[other] > key ? 1 : 0;
    if (more_confident < keep) {
      op.tokens[request * op.tokens_stride + position] =
          launch.choices[static_cast<int64_t>(request) * positions + position];
    }
  }
}

}  // namespace dflash::cuda
