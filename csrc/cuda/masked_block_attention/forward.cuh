// The forward pass: a block has a row tile of one kv head and walks the live key tiles of each of its segments.
#pragma once
#include "cuda/common/attention_products.cuh"
#include "cuda/common/attention_stages.cuh"
#include "cuda/masked_block_attention/mask.cuh"
#include "cuda/masked_block_attention/traits.cuh"

namespace dflash::cuda {

// A segment's part of a row tile.
struct SegmentWork {
  QueryKeys seen;  // the hull of what its rows see
  int begin, end;  // its rows, counted from first_row
  int first_row;   // of the row tile, among all rows of the kv head
  uint32_t kv_head;
  int next_segment;  // the query with which it starts, counted from the row tile's first
  int is_last;       // there is no next one
};

// What of a segment lies in shared memory, so that it takes no registers beside sums and scores.
template <typename Traits>
struct SegmentState {
  SegmentWork work;
  KeyTileWalk walk;
  SeenByRows sight[Traits::kWarps][2];  // what a warp's rows see of context keys, and of block keys
};

// ---- From memory to shared memory

// Copies a key tile into a stage; a warp has the same rows of every tile. Keys outside the segment's hull are not read
// and become zero: 0 * NaN would not be.
template <typename Traits>
class KeyTileCopy {
  static constexpr int kWarpRows = Traits::kKeys / Traits::kWarps;
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

// The segment's queries; other rows of the row tile are zero.
template <typename Traits>
__device__ __forceinline__ void copy_queries(const MaskedAttentionLaunch& launch, const SegmentWork& work,
                                             uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % Traits::kRowLanes;
  for (int row = static_cast<int>(threadIdx.x) / Traits::kRowLanes; row < Traits::kRows;
       row += Traits::kThreads / Traits::kRowLanes) {
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

// Writes down what a warp's rows see, to be read behind a barrier. For all lanes of a warp, each for its own row.
template <typename Traits>
__device__ __forceinline__ void find_sight(const MaskTiles& tiles, SegmentState<Traits>& state) {
  const SegmentWork& work = state.work;
  const int row = static_cast<int>(threadIdx.x), warp = row / kWarpLanes;
  SeenByRows context = SeenByRows::none(), blocks = SeenByRows::none();
  if (row >= work.begin && row < work.end) {
    const QueryKeys keys = tiles.query_keys[(work.first_row + row) / static_cast<int>(tiles.group)];
    context.add(stretch_of(keys, false));
    blocks.add(stretch_of(keys, true));
  }
  context = context.of_warp();
  blocks = blocks.of_warp();
  if (row % kWarpLanes == 0) {
    state.sight[warp][0] = context;
    state.sight[warp][1] = blocks;
  }
}

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

// A tile that every row of the warp sees whole carries no mask; of others, only the blocks of keys that a row sees are
// multiplied.
template <typename Traits>
__device__ __forceinline__ void attend_tile(const MaskedAttentionLaunch& launch, const SegmentState<Traits>& state,
                                            int tile, uint32_t stage, const Queries<Traits>& queries,
                                            RowSums<Traits>& sums) {
  const bool of_blocks = holds_blocks(launch.tiles, tile);
  const SeenByRows seen = state.sight[threadIdx.x / kWarpLanes][of_blocks ? 1 : 0];
  const int first_key = keys_of_tile(launch.tiles, tile).begin;
  const KeyStretch whole{first_key, first_key + Traits::kKeys};
  if (!overlap(seen.any, whole)) return;
  Scores<Traits> scores;
  if (contains(seen.all, whole)) {
    multiply_keys<Traits, Traits::kRowBlocks>(queries, stage, scores);
    scale_scores<Traits>(launch.scale_log2, scores);
    weigh_scores<Traits, Traits::kRowBlocks>(scores, sums);
    add_values<Traits, Traits::kRowBlocks>(scores, stage + Traits::kTileBytes, sums);
  } else {
    const SeenKeyBlocks blocks(first_key, seen.any);
    multiply_keys<Traits, Traits::kRowBlocks>(queries, stage, scores, blocks);
    scale_scores<Traits>(launch.scale_log2, scores);
    mask_scores<Traits>(launch.tiles, state.work, of_blocks, first_key, scores);
    weigh_scores<Traits, Traits::kRowBlocks>(scores, sums);
    add_values<Traits, Traits::kRowBlocks>(scores, stage + Traits::kTileBytes, sums, blocks);
  }
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

// ---- The walk

template <typename Traits>
__device__ __forceinline__ void attend_segment(const MaskedAttentionLaunch& launch, SegmentState<Traits>& state,
                                               uint32_t query_tile) {
  const uint32_t first_stage = query_tile + Traits::kQueryBytes;
  const uint32_t end_stage = first_stage + launch.stages * Traits::kStageBytes;
  // One group of copies for each tile, also where there is no tile left, so that the latest groups can be counted. The
  // first has the queries too.
  const auto copy = [&](int number, uint32_t stage) {
    if (number < state.walk.count()) {
      KeyTileCopy<Traits>::copy(launch, state.work, state.walk.tile(number), stage);
    }
    close_copy_group();
  };
  copy_queries<Traits>(launch, state.work, query_tile);
  const int ahead = static_cast<int>(launch.stages) - 1;
  for (int i = 0; i < ahead; ++i) copy(i, first_stage + i * Traits::kStageBytes);
  find_sight(launch.tiles, state);

  Queries<Traits> queries(query_tile);
  RowSums<Traits> sums;
  sums.clear();
  uint32_t stage = first_stage;
  for (int i = 0; i < state.walk.count(); ++i) {
    wait_for_tile(launch.stages);
    __syncthreads();  // every thread's copies have landed, and no warp reads the stage that is filled next
    if (i == 0) queries.load();
    copy(i + ahead, (stage == first_stage ? end_stage : stage) - Traits::kStageBytes);
    attend_tile<Traits>(launch, state, state.walk.tile(i), stage, queries, sums);
    stage += Traits::kStageBytes;
    if (stage == end_stage) stage = first_stage;
  }
  add_lanes(sums);
  write_rows<Traits>(launch, state.work, sums);
}

// Block: a row tile and kv head, those with the most live key tiles first.
template <typename Traits>
__device__ __forceinline__ void masked_block_attention(const MaskedAttentionLaunch& launch) {
  extern __shared__ uint4 shared[];
  __shared__ SegmentState<Traits> state;
  const MaskTiles& tiles = launch.tiles;
  int begin = 0;  // query of the row tile with which the segment starts
  bool is_last = false;
  while (!is_last) {
    // Found anew for every segment, so that it takes no registers in between.
    const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
    const int row_tile = tiles.row_schedule[blockIdx.x / kv_heads], group = static_cast<int>(tiles.group);
    const KeyStretch queries = queries_of_tile(tiles, row_tile);
    const int first = queries.begin + begin, end = segment_end(tiles, first, queries.end);
    const QueryKeys seen = keys_of_segment(tiles, {first, end});
    wait_for_copy_groups<0>();
    __syncthreads();  // no warp is still at the segment before
    if (threadIdx.x == 0) {
      const int first_row = row_tile * Traits::kRows, rows = static_cast<int>(tiles.queries) * group - first_row;
      state.work = {seen,
                    max(0, first * group - first_row),
                    min(min(Traits::kRows, rows), end * group - first_row),
                    first_row,
                    blockIdx.x % kv_heads,
                    end - queries.begin,
                    end == queries.end ? 1 : 0};
      state.walk = KeyTileWalk(tiles, seen);
    }
    __syncthreads();
    attend_segment<Traits>(launch, state, shared_address(shared));
    begin = state.work.next_segment;
    is_last = state.work.is_last != 0;
  }
}

}  // namespace dflash::cuda
