// The way of keys and values from pages, and of the block's own, to shared memory.
#pragma once
#include "cuda/block_attention/context.cuh"
#include "cuda/block_attention/traits.cuh"
#include "cuda/block_attention/work.cuh"

namespace dflash::cuda {

// The kv head of blockIdx.y in the cache and in the block.
class HeadSource {
 public:
  __device__ __forceinline__ explicit HeadSource(const AttentionSource& source) : source_(source) {
    cache_ = static_cast<const uint4*>(source.cache) + static_cast<uint64_t>(blockIdx.y) * source.head_stride;
    block_ = static_cast<const uint4*>(source.block) + static_cast<uint64_t>(blockIdx.y) * source.block_head_stride;
  }
  // Products of two 32-bit numbers in 64 bits: offsets past 2^31 elements cost no more than others.
  __device__ __forceinline__ const uint4* in_cache(uint32_t page, uint32_t slot, uint32_t chunk) const {
    return cache_ + (static_cast<uint64_t>(page) * source_.page_stride +
                     static_cast<uint64_t>(slot) * source_.slot_stride + chunk);
  }
  __device__ __forceinline__ const uint4* in_block(uint32_t token, uint32_t chunk) const {
    return block_ + (static_cast<uint64_t>(token) * source_.token_stride + chunk);
  }

 private:
  const AttentionSource& source_;
  const uint4 *cache_, *block_;
};

// Copies key tiles into stages. A warp has the same rows of every tile; a lane looks up the page of one of them, a tile
// ahead of the copies, and gets the other rows' pages from its neighbours: however small the pages are, the table is
// read once. `Launch`: where keys and values lie, and page_shift. `Context`: which pages (context.cuh).
template <typename Traits, typename Launch, typename Context>
class TileCopy {
  // Where there are more warps than rows to copy at once, half of them copy keys and half values.
  static constexpr int kTeamWarps =
      Traits::kKeys / Traits::kCopyRows < Traits::kWarps ? Traits::kKeys / Traits::kCopyRows : Traits::kWarps;
  static constexpr bool kTeams = kTeamWarps < Traits::kWarps;
  static_assert(!kTeams || 2 * kTeamWarps == Traits::kWarps, "one team for keys, one for values");
  static constexpr int kWarpRows = Traits::kKeys / kTeamWarps;
  static_assert(kWarpRows <= kWarpLanes && kWarpRows % Traits::kCopyRows == 0, "a lane looks up at most one page");

 public:
  __device__ __forceinline__ TileCopy(const Launch& launch, const AttentionWork& work, const Context& context)
      : launch_(launch),
        work_(work),
        context_(context),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        first_row_(static_cast<int>(threadIdx.x / kWarpLanes) % kTeamWarps * kWarpRows),
        keys_(launch.k),
        values_(launch.v) {}

  // The page of this lane's row in a tile, to be passed to `copy`.
  __device__ __forceinline__ int page(int tile) const {
    const int position = tile * Traits::kKeys + first_row_ + lane_ % kWarpRows;
    const bool in_cache =
        tile < work_.end_tile && position >= work_.keys.begin && position < min(work_.context_len, work_.keys.end);
    return in_cache ? context_.page(position >> launch_.page_shift) : 0;
  }

  // Copies a tile to shared memory at `stage`. Rows outside the visible keys, and what lies past a length, are not read
  // and become zero: 0 * NaN would not be.
  __device__ __forceinline__ void copy(int tile, int page, uint32_t stage) const {
#pragma unroll
    for (int row = 0; row < kWarpRows; row += Traits::kCopyRows) {
      const int of_warp = row + lane_ / Traits::kRowLanes, of_tile = first_row_ + of_warp;
      const uint32_t page_of_row = static_cast<uint32_t>(__shfl_sync(kAllLanes, page, of_warp));
      const int position = tile * Traits::kKeys + of_tile;
      const bool present = position >= work_.keys.begin && position < work_.keys.end;
      const int token = position - work_.context_len;
      const uint32_t slot = static_cast<uint32_t>(position) & ((1u << launch_.page_shift) - 1);
      if (copies_keys()) copy_row(keys_, stage, of_tile, present, token, page_of_row, slot);
      if (copies_values()) copy_row(values_, stage + Traits::kTileBytes, of_tile, present, token, page_of_row, slot);
    }
  }

 private:
  static __device__ __forceinline__ bool copies_keys() { return !kTeams || threadIdx.x < kTeamWarps * kWarpLanes; }
  static __device__ __forceinline__ bool copies_values() { return !kTeams || threadIdx.x >= kTeamWarps * kWarpLanes; }

  __device__ __forceinline__ void copy_row(const HeadSource& source, uint32_t tile, int row, bool present, int token,
                                           uint32_t page, uint32_t slot) const {
    const uint32_t first_chunk = static_cast<uint32_t>(lane_ % Traits::kRowLanes);
    const uint4* from = token < 0 ? source.in_cache(page, slot, first_chunk)
                                  : source.in_block(static_cast<uint32_t>(work_.first_token + token), first_chunk);
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; chunk += Traits::kRowLanes) {
      copy_16_bytes_async(tile + Traits::place(row, chunk + lane_ % Traits::kRowLanes), from + chunk, present);
    }
  }

  const Launch& launch_;
  const AttentionWork& work_;
  const Context& context_;
  int lane_, first_row_;
  HeadSource keys_, values_;
};

// The row tile's queries, zero where there are no more rows.
template <typename Traits, typename Launch>
__device__ __forceinline__ void copy_queries(const Launch& launch, const AttentionWork& work, uint32_t to) {
  const auto& op = launch.op;
  const int lane = static_cast<int>(threadIdx.x) % Traits::kRowLanes;
  for (int row = static_cast<int>(threadIdx.x) / Traits::kRowLanes; row < Traits::kRows;
       row += Traits::kThreads / Traits::kRowLanes) {
    const bool present = row < work.rows;
    const uint32_t request_row = static_cast<uint32_t>(work.first_row + (present ? row : 0));
    const int64_t token = work.first_token + request_row / launch.group;
    const int64_t head = static_cast<int64_t>(blockIdx.y) * launch.group + request_row % launch.group;
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const typename Traits::T*>(op.q) +
                                                       token * op.q_token_stride + head * op.q_head_stride) +
                        lane;
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; chunk += Traits::kRowLanes) {
      copy_16_bytes_async(to + Traits::place(row, chunk + lane), from + chunk, present);
    }
  }
}

}  // namespace dflash::cuda
