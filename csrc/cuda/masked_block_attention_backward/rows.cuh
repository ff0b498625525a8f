// What the other kernels need of rows: the sum of grad_out * out (delta), lse to base 2, and which keys are visible.
#pragma once
#include "cuda/common/convert.cuh"
#include "cuda/masked_block_attention_backward/traits.cuh"

namespace dflash::cuda {

template <typename T>
__device__ __forceinline__ float product_of_pairs(uint32_t a, uint32_t b) {
  const auto low = [](uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair)}); };
  const auto high = [](uint32_t pair) { return to_float(T{static_cast<uint16_t>(pair >> 16)}); };
  return fmaf(low(a), low(b), high(a) * high(b));
}

// Block (row tile, kv head).
template <typename Traits>
__device__ __forceinline__ void describe_rows(const MaskedBackwardLaunch& launch) {
  using T = typename Traits::T;
  constexpr int kLanes = Traits::kChunks;  // of a row, 16 bytes each
  const int tile = tile_of_block(launch), head = head_of_block(launch), lane = static_cast<int>(threadIdx.x) % kLanes;
  MaskedRowTerms* const terms = terms_of_head(launch, head, Traits::kRows) + static_cast<int64_t>(tile) * Traits::kRows;
#pragma unroll
  for (int of_tile = static_cast<int>(threadIdx.x) / kLanes; of_tile < Traits::kRows;
       of_tile += Traits::kThreads / kLanes) {
    const int row = tile * Traits::kRows + of_tile;
    const bool present = row < launch.rows;
    const int read = present ? row : 0;
    const uint4 grad =
        reinterpret_cast<const uint4*>(row_of_head<const T>(launch, launch.op.grad_out, head, read))[lane];
    const uint4 out = reinterpret_cast<const uint4*>(row_of_head<const T>(launch, launch.op.out, head, read))[lane];
    float delta = product_of_pairs<T>(grad.x, out.x) + product_of_pairs<T>(grad.y, out.y) +
                  product_of_pairs<T>(grad.z, out.z) + product_of_pairs<T>(grad.w, out.w);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      delta += __shfl_xor_sync(kAllLanes, delta, distance);
    }
    if (lane == 0) {
      // 2^(logit - infinity) = 0: a row that sees nothing, or that does not exist, has no probability anywhere.
      const float lse = present ? *row_of_head<const float>(launch, launch.op.lse, head, row) : kMinusInfinity;
      const bool nothing = lse == kMinusInfinity;
      terms[of_tile] = {nothing ? INFINITY : lse * kLog2E, nothing ? 0.0f : delta};
    }
  }

  // The same for all heads.
  if (head != 0 || threadIdx.x >= kWarpLanes) return;
  MaskedTileKeys keys = no_rows();
  for (int of_tile = static_cast<int>(threadIdx.x); of_tile < Traits::kRows; of_tile += kWarpLanes) {
    const int row = tile * Traits::kRows + of_tile;
    if (row >= launch.rows) break;
    const int query = row / launch.group;
    const bool anchored = launch.op.mode == MaskMode::kAnchor;
    const int64_t position =
        anchored ? launch.op.anchors[query / launch.op.block_size * launch.op.anchors_stride] : query;
    const Document document = document_at(launch.op, position);
    const VisibleKeys visible = visible_keys(launch.op, document.begin, document.end, query);
    const MaskedKeys of_query{static_cast<int32_t>(visible.context_begin), static_cast<int32_t>(visible.context_end),
                              static_cast<int32_t>(visible.block_begin), static_cast<int32_t>(visible.block_end)};
    if (row % launch.group == 0) launch.query_keys[query] = of_query;
    add_row(keys, of_query);
  }
  keys = over_lanes(keys);
  if (threadIdx.x == 0) launch.tile_keys[tile] = keys;
}

}  // namespace dflash::cuda
