#pragma once
#include "cuda/common/arrival.cuh"
#include "cuda/select_pages/choose.cuh"
#include "cuda/select_pages/score.cuh"

namespace dflash::cuda {

// The selection of one request and kv head, by one block. `keys`: of all pages that are scored, null where none is.
template <int kThreads>
__device__ __forceinline__ void write_selection(const SelectPagesLaunch& launch, int request,
                                                const PageDivision& division, const uint32_t* keys) {
  extern __shared__ uint4 shared[];
  const SelectPagesParams& op = launch.op;
  const int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x), sinks = static_cast<int>(division.sinks);
  int32_t* selected = op.selected + request * op.selected_batch_stride + head * op.selected_head_stride;
  int32_t* const chosen = selected + sinks;
  if (keys != nullptr) {
    const int count = static_cast<int>(division.local_begin - division.sinks);
    uint32_t* const histogram = reinterpret_cast<uint32_t*>(shared);
    keys += sinks;
    if (count <= launch.shared_keys) {
      uint32_t* const copy = histogram + kDigits;
#pragma unroll 8
      for (int i = thread; i < count; i += kThreads) copy[i] = keys[i];
      keys = copy;
    }
    const KeyCut cut = find_cut<kThreads>(keys, count, static_cast<uint32_t>(division.chosen), histogram);
    write_chosen<kThreads>(keys, count, sinks, cut, chosen);
  } else {
    for (int i = thread; i < division.chosen; i += kThreads) chosen[i] = sinks + i;
  }
  for (int i = thread; i < sinks; i += kThreads) selected[i] = i;
  const int local_begin = static_cast<int>(division.local_begin),
            local = static_cast<int>(division.pages) - local_begin;
  int32_t* const after_chosen = chosen + division.chosen;
  for (int i = thread; i < local; i += kThreads) after_chosen[i] = local_begin + i;
  const int count = sinks + static_cast<int>(division.chosen) + local;
  for (int i = count + thread; i < op.width; i += kThreads) selected[i] = -1;
  if (thread == 0) op.counts[request * op.counts_batch_stride + head * op.counts_head_stride] = count;
}

// Block (request and stretch of its pages, kv head).
template <typename Traits>
__device__ __forceinline__ void select_pages(const SelectPagesLaunch& launch) {
  const SelectPagesParams& op = launch.op;
  const int request = static_cast<int>(blockIdx.x / launch.stretches);
  const int own_stretch = static_cast<int>(blockIdx.x % launch.stretches);
  // Lengths that no one could check lead past no table, and to no rows that are not there.
  const int context_len = min(max(0, op.context_lens[request * op.context_lens_stride]), launch.capacity);
  ScoreStretch stretch{};
  stretch.request = request;
  const int tokens = static_cast<int>(op.tokens);
  int end_token;
  if (op.cu_block_lens == nullptr) {
    const int each = tokens / static_cast<int>(op.batch);
    stretch.first_token = request * each;
    end_token = stretch.first_token + each;
  } else {
    stretch.first_token = min(max(0, op.cu_block_lens[request * op.cu_block_lens_stride]), tokens);
    end_token = min(op.cu_block_lens[(request + 1) * op.cu_block_lens_stride], tokens);
  }
  stretch.rows = max(0, end_token - stretch.first_token) * static_cast<int>(launch.group);
  const PageDivision division = divide_pages(op, launch.context_page_shift, context_len);
  if (!division.scored || stretch.rows == 0) {
    if (own_stretch == 0) write_selection<Traits::kThreads>(launch, request, division, nullptr);
    return;
  }
  stretch.begin = static_cast<int>(division.sinks);
  stretch.end = static_cast<int>(division.local_begin);
  const int first = stretch.begin / Traits::kKeys, end = (stretch.end + Traits::kKeys - 1) / Traits::kKeys;
  const int stretches = static_cast<int>(launch.stretches);
  const int tiles = max(static_cast<int>(launch.least_tiles), (end - first + stretches - 1) / stretches);
  stretch.first_tile = first + own_stretch * tiles;
  stretch.end_tile = min(end, stretch.first_tile + tiles);
  if (stretch.first_tile >= end) return;
  const int64_t list = static_cast<int64_t>(request) * gridDim.y + blockIdx.y;
  stretch.keys = launch.keys + list * op.max_pages;
  score_stretch<Traits>(launch, stretch);
  const int blocks = (end - first + tiles - 1) / tiles;
  if (blocks > 1 && !last_to_arrive(launch.arrivals + list, static_cast<uint32_t>(blocks))) return;
  write_selection<Traits::kThreads>(launch, request, division, stretch.keys);
}

}  // namespace dflash::cuda
