#pragma once
#include "cuda/common/argmax.cuh"
#include "plan/cuda/verify_greedy.h"

namespace dflash::cuda {

// Drafts of a request, -1 if it is idle. Lengths are data that no one could check before the launch: they are bounded
// here, so that a wrong one reads and writes nothing out of place.
__device__ __forceinline__ int64_t draft_len_of(const VerifyParams& params, int64_t request) {
  if (params.draft_lens == nullptr) return params.drafts;
  const int64_t length = params.draft_lens[request * params.draft_lens_stride];
  return max(min(length, params.drafts), int64_t{-1});
}

// For a whole warp: accepts the leading drafts equal to `choices` [draft_len + 1], which may be the request's row of
// `tokens` itself, and writes the request's outputs.
__device__ __forceinline__ void commit_drafts(const VerifyParams& params, int64_t request, const int64_t* choices) {
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t draft_len = draft_len_of(params, request);
  const int64_t* drafts = params.draft_tokens + request * params.draft_stride;
  int64_t accepted = draft_len;
  for (int64_t begin = 0; begin < draft_len; begin += kWarpLanes) {
    const int64_t i = begin + lane;
    const uint32_t differing = __ballot_sync(kAllLanes, i < draft_len && drafts[i] != choices[i]);
    if (differing != 0) {
      accepted = begin + __ffs(static_cast<int>(differing)) - 1;
      break;
    }
  }
  int64_t* tokens = params.tokens + request * params.tokens_stride;
  int64_t* next_token = params.next_token + request * params.next_token_stride;
  for (int64_t i = lane; i <= params.drafts; i += kWarpLanes) {
    const int64_t token = i <= accepted ? choices[i] : -1;
    tokens[i] = token;
    if (i == accepted) *next_token = token;
  }
  if (lane == 0) {
    params.accepted[request * params.accepted_stride] = static_cast<int32_t>(max(accepted, int64_t{0}));
    if (accepted < 0) *next_token = -1;
  }
}

// Block (row of all requests, stretch); the last block of a request to arrive decides it.
template <typename T>
__device__ __forceinline__ void verify_greedy_logits(const VerifyGreedyLaunch& launch) {
  const VerifyParams& op = launch.op;
  const uint32_t request_rows = static_cast<uint32_t>(op.drafts) + 1;
  const uint32_t request = blockIdx.x / request_rows, row = blockIdx.x % request_rows;
  const int64_t draft_len = draft_len_of(op, request);
  const T* logits = static_cast<const T*>(op.logits) + request * op.logits_batch_stride;
  const auto row_of_request = [&](int64_t i) {
    return ChunkedRow<T>(logits + i * op.logits_row_stride, op.vocabulary);
  };
  if (row <= draft_len) {
    const uint64_t best = stretch_best(row_of_request(row), launch.rows, blockIdx.y);
    if (threadIdx.x == 0) {
      launch.rows.stretch_best[static_cast<int64_t>(blockIdx.x) * launch.rows.stretches + blockIdx.y] = best;
    }
  }
  if (!last_to_arrive(launch.rows.arrivals + request, request_rows * launch.rows.stretches)) return;

  int64_t* tokens = op.tokens + request * op.tokens_stride;
  for (int64_t i = threadIdx.x / kWarpLanes; i <= draft_len; i += kArgmaxThreads / kWarpLanes) {
    const uint64_t best = merged_best(launch.rows, static_cast<int64_t>(request) * request_rows + i);
    row_of_request(i).resolve(best, [&](int64_t column, float) { tokens[i] = column; });
  }
  __syncthreads();
  if (threadIdx.x < kWarpLanes) commit_drafts(op, request, tokens);
}

__device__ __forceinline__ void verify_greedy_ids(const VerifyParams& op) {
  const int64_t request = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / kWarpLanes;
  if (request < op.batch) commit_drafts(op, request, op.target_ids + request * op.target_ids_stride);
}

}  // namespace dflash::cuda
