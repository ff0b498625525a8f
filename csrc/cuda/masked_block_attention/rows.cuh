// What the forward kernels do alike: a segment's rows and key tiles on their way to shared memory, a tile of which only
// a part is seen, results.
#pragma once
#include "cuda/common/attention_products.cuh"
#include "cuda/masked_block_attention/segment.cuh"

namespace dflash::cuda {

// ---- From memory to shared memory

// Copies a key tile into a stage; one of kCopyWarps warps has the same rows of every tile. Keys outside the segment's
// hull are not read and become zero: 0 * NaN would not be.
template <typename Traits>
class KeyTileCopy {
  static constexpr int kWarpRows = Traits::kKeys / Traits::kCopyWarps;
  static_assert(kWarpRows % Traits::kCopyRows == 0, "whole rounds of copies");

 public:
  static __device__ __forceinline__ void copy(const MaskedAttentionLaunch& launch, const SegmentWork& work, int tile,
                                              uint32_t stage) {
    const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
    const int first_row = static_cast<int>(threadIdx.x / kWarpLanes) * kWarpRows + lane / Traits::kRowLanes;
    const bool of_blocks = holds_blocks(launch.tiles, tile);
    const KeyStretch keys = keys_of_tile(launch.tiles, tile), seen = stretch_of(work.seen, of_blocks);
#pragma unroll
    for (int i = 0; i < kWarpRows; i += Traits::kCopyRows) {
      const int row = first_row + i, key = keys.begin + row;
      const bool present = key >= seen.begin && key < seen.end;
      // What is not read has an address all the same: that of a key that is.
      const uint32_t from = key_row(launch.tiles, of_blocks, static_cast<uint32_t>(present ? key : seen.begin));
      copy_row(launch.k, from, work.kv_head, stage, row, present);
      copy_row(launch.v, from, work.kv_head, stage + Traits::kTileBytes, row, present);
    }
  }

 private:
  // Products of two 32-bit numbers in 64 bits: offsets past 2^31 elements cost no more than others.
  static __device__ __forceinline__ void copy_row(const MaskedSource& source, uint32_t from, uint32_t head,
                                                  uint32_t tile, int row, bool present) {
    const int first_chunk = static_cast<int>(threadIdx.x % Traits::kRowLanes);
    const uint4* const chunks =
        static_cast<const uint4*>(source.data) + (static_cast<uint64_t>(from) * source.row_stride +
                                                  static_cast<uint64_t>(head) * source.head_stride + first_chunk);
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; chunk += Traits::kRowLanes) {
      copy_16_bytes_async(tile + Traits::place(row, chunk + first_chunk), chunks + chunk, present);
    }
  }
};

// Where a row of the row tile lies in q, out (in elements) and lse.
struct RowPlace {
  int64_t query, head;
  __device__ __forceinline__ RowPlace(const MaskedAttentionLaunch& launch, const SegmentWork& work, int row) {
    const uint32_t group = launch.tiles.group, of_head = static_cast<uint32_t>(work.first_row + row);
    query = query_at(launch.tiles, of_head / group);
    head = static_cast<int64_t>(work.kv_head) * group + of_head % group;
  }
  __device__ __forceinline__ int64_t in(const HeadRows& rows) const {
    return query * rows.row_stride + head * rows.head_stride;
  }
};

// Rows [first, end) of the row tile: the segment's queries, and zeros. By `threads` threads, this one as number
// `thread`.
template <typename Traits>
__device__ __forceinline__ void copy_queries(const MaskedAttentionLaunch& launch, const SegmentWork& work, uint32_t to,
                                             int first, int end, int thread, int threads) {
  const int lane = thread % Traits::kRowLanes;
  for (int row = first + thread / Traits::kRowLanes; row < end; row += threads / Traits::kRowLanes) {
    const bool present = row >= work.begin && row < work.end;
    const RowPlace place(launch, work, present ? row : work.begin);
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const typename Traits::T*>(launch.op.q.data) +
                                                       place.in(launch.op.q)) +
                        lane;
#pragma unroll
    for (int chunk = 0; chunk < Traits::kChunks; chunk += Traits::kRowLanes) {
      copy_16_bytes_async(to + Traits::place(row, chunk + lane), from + chunk, present);
    }
  }
}

// ---- A key tile

// Which blocks of 16 keys of a tile a row of the warp sees.
struct SeenKeyBlocks {
  int first, end;
  __device__ __forceinline__ SeenKeyBlocks(int first_key, const KeyStretch& seen)
      : first((seen.begin - first_key) >> 4), end((seen.end - first_key + 15) >> 4) {}
  __device__ __forceinline__ bool operator()(int block) const { return block >= first && block < end; }
};

// Selects minus infinity, whatever the product was, where a row does not see a key.
template <typename Traits>
__device__ __forceinline__ void mask_scores(const MaskTiles& tiles, const SegmentWork& work, bool of_blocks,
                                            int first_key, Scores<Traits>& scores) {
  const int lane_key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows of no segment are like one of it: their queries are zero and they are not written.
      const int row = work.first_row + min(max(row_of<Traits>(i, half), work.begin), work.end - 1);
      const KeyStretch keys = stretch_of(tiles.query_keys[row / static_cast<int>(tiles.group)], of_blocks);
#pragma unroll
      for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = lane_key + j * 8 + e;
          float& score = scores[i][j][2 * half + e];
          score = key >= keys.begin && key < keys.end ? score : kMinusInfinity;
        }
      }
    }
  }
}

// Products to logits. A rounded product, not one contracted with a later sum, so that all kernels agree on it.
template <typename Traits>
__device__ __forceinline__ void scale_scores(float scale_log2, Scores<Traits>& scores) {
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][j][e] = __fmul_rn(scores[i][j][e], scale_log2);
    }
  }
}

// A key tile of which the warp's rows see a part, `seen`: only the blocks of keys that a row sees are multiplied.
template <typename Traits>
__device__ __forceinline__ void attend_partly_seen(const MaskedAttentionLaunch& launch, const SegmentWork& work,
                                                   bool of_blocks, int first_key, const KeyStretch& seen,
                                                   uint32_t stage, const Queries<Traits>& queries,
                                                   RowSums<Traits>& sums) {
  const SeenKeyBlocks blocks(first_key, seen);
  Scores<Traits> scores;
  multiply_keys<Traits, Traits::kRowBlocks>(queries, stage, scores, blocks);
  scale_scores<Traits>(launch.scale_log2, scores);
  mask_scores<Traits>(launch.tiles, work, of_blocks, first_key, scores);
  weigh_scores<Traits, Traits::kRowBlocks>(scores, sums);
  add_values<Traits, Traits::kRowBlocks>(scores, stage + Traits::kTileBytes, sums, blocks);
}

// ---- Results

// Divides by the denominators and writes the segment's rows.
template <typename Traits>
__device__ __forceinline__ void write_rows(const MaskedAttentionLaunch& launch, const SegmentWork& work,
                                           RowSums<Traits>& sums) {
#pragma unroll
  for (int i = 0; i < Traits::kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of<Traits>(i, half);
      const bool present = row >= work.begin && row < work.end;
      const RowPlace place(launch, work, present ? row : work.begin);
      const float weights = sums.weights[i][half];
      const bool empty = weights == 0.0f;
      const float normalise = empty ? 0.0f : 1.0f / weights;
      auto* const out =
          reinterpret_cast<uint4*>(static_cast<typename Traits::T*>(launch.op.out.data) + place.in(launch.op.out));
      const int lane = static_cast<int>(threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < 2 * Traits::kDimBlocks; j += 4) {
        uint32_t words[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float (&quad)[4] = sums.values[i][j + c];
          words[c] = Traits::pack(quad[2 * half] * normalise, quad[2 * half + 1] * normalise);
        }
        gather_chunk(words);
        if (present) out[j + lane] = make_uint4(words[0], words[1], words[2], words[3]);
      }
      if (present && lane == 0) {
        static_cast<float*>(launch.op.lse.data)[place.in(launch.op.lse)] =
            empty ? kMinusInfinity : kLn2 * (sums.largest[i][half] + log2_approximate(weights));
      }
    }
  }
}

}  // namespace dflash::cuda
