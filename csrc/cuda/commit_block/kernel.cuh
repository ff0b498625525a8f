#pragma once
#include "cuda/common/reduce.cuh"
#include "params/commit_block.h"

namespace dflash::cuda {

__device__ __forceinline__ bool is_stop_token(const CommitBlockParams& params, int64_t token) {
  for (int64_t i = 0; i < params.stop_tokens; ++i) {
    if (params.stop_token_ids[i] == token) return true;
  }
  return false;
}

// Tokens that an active request may still append. Lengths that make no sense are refused on the CPU; here they must
// only not write out of place.
__device__ __forceinline__ int64_t room_of(const CommitBlockParams& params, int64_t request, int64_t output_len) {
  int64_t limit = params.capacity;
  if (params.max_output_lens != nullptr) {
    limit = min(limit, static_cast<int64_t>(params.max_output_lens[request * params.max_output_lens_stride]));
  }
  return output_len < 0 ? 0 : max(limit - output_len, int64_t{0});
}

// One warp for each request, lane i taking tokens i, i + 32, ...
__device__ __forceinline__ void commit_block(const CommitBlockParams& params) {
  const int64_t request = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / kWarpLanes;
  if (request >= params.batch) return;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t* tokens = params.tokens + request * params.tokens_stride;
  bool* finished = params.finished + request * params.finished_stride;
  int64_t count = 0;
  if (!*finished && tokens[0] >= 0) {  // a request whose first token is -1 sat this round out
    int32_t* output_len = params.output_lens + request * params.output_lens_stride;
    const int64_t length = *output_len;
    const int64_t room = room_of(params, request, length);
    const int64_t emitted = static_cast<int64_t>(params.accepted[request * params.accepted_stride]) + 1;
    const int64_t most = max(min(min(emitted, params.block), room), int64_t{0});
    bool stopped = false;
    count = most;
    for (int64_t begin = 0; begin < most && !stopped; begin += kWarpLanes) {
      const int64_t i = begin + lane;
      const uint32_t stops = __ballot_sync(kAllLanes, i < most && is_stop_token(params, tokens[i]));
      stopped = stops != 0;
      if (stopped) count = begin + __ffs(static_cast<int>(stops));
    }
    int64_t* output = params.output_ids + request * params.output_ids_stride + length;
    for (int64_t i = lane; i < count; i += kWarpLanes) output[i] = tokens[i];
    __syncwarp();  // every lane has read the old length and flag
    if (lane == 0) {
      if (stopped || count == room) *finished = true;
      *output_len = static_cast<int32_t>(length + count);
      params.context_lens[request * params.context_lens_stride] += static_cast<int32_t>(count);
      if (count > 0) params.next_token[request * params.next_token_stride] = tokens[count - 1];
    }
  }
  if (lane == 0) params.committed[request * params.committed_stride] = static_cast<int32_t>(count);
  const int64_t* slots = params.slot_mapping + request * params.slot_mapping_stride;
  int64_t* context_slots = params.context_slots + request * params.context_slots_stride;
  for (int64_t i = lane; i < params.block; i += kWarpLanes) context_slots[i] = i < count ? slots[i] : -1;
}

}  // namespace dflash::cuda
