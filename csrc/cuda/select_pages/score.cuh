// Scores of pages: what a query could have with any key within a page's bounds, the greatest of all rows. The sum over
// channels of max(q * min, q * max) is two products, the queries' negative part times the minima plus their positive
// part times the maxima, so pages are swept by block_attention's own copies and register tiles.
#pragma once
#include "cuda/block_attention/copy.cuh"
#include "cuda/common/argmax.cuh"
#include "cuda/common/attention_products.cuh"
#include "cuda/common/attention_stages.cuh"
#include "plan/cuda/select_pages.h"

namespace dflash::cuda {

// Keys of pages: greater for a greater score, NaN above all.
struct ScoreStretch {
  int request, first_token, rows;  // rows of q of each kv head
  int begin, end;                  // pages whose keys are wanted
  int first_tile, end_tile;        // tiles of kKeys pages
  uint32_t* keys;                  // of the request and kv head, by page
};

// scores = queries against bounds, minima at `stage` and maxima behind them.
template <typename Traits, int kActive>
__device__ __forceinline__ void multiply_bounds(const Queries<Traits>& queries, uint32_t stage,
                                                Scores<Traits>& scores) {
  clear_scores<Traits, kActive>(scores);
#pragma unroll
  for (int k = 0; k < Traits::kDimBlocks; ++k) {
    uint32_t negative[kActive][4], positive[kActive][4];
#pragma unroll
    for (int i = 0; i < kActive; ++i) {
      queries.get(i, k, positive[i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        negative[i][e] = positive[i][e] & signs_of_halves(positive[i][e]);
        positive[i][e] ^= negative[i][e];
      }
    }
#pragma unroll
    for (int j = 0; j < Traits::kKeyBlocks; ++j) {
      uint32_t minima[4], maxima[4];
      load_matrices(minima, TileAddress<Traits>::keys(stage, j, k));
      load_matrices(maxima, TileAddress<Traits>::keys(stage + Traits::kTileBytes, j, k));
#pragma unroll
      for (int i = 0; i < kActive; ++i) {
        Traits::multiply(scores[i][2 * j], negative[i], minima[0], minima[1]);
        Traits::multiply(scores[i][2 * j], positive[i], maxima[0], maxima[1]);
        Traits::multiply(scores[i][2 * j + 1], negative[i], minima[2], minima[3]);
        Traits::multiply(scores[i][2 * j + 1], positive[i], maxima[2], maxima[3]);
      }
    }
  }
}

// best[page of the tile] = the greatest key of this warp's rows, if it is greater.
template <typename Traits, int kActive>
__device__ __forceinline__ void score_tile(const Queries<Traits>& queries, uint32_t stage, int rows, uint32_t* best) {
  Scores<Traits> scores;
  multiply_bounds<Traits, kActive>(queries, stage, scores);
#pragma unroll
  for (int j = 0; j < 2 * Traits::kKeyBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float greatest = kMinusInfinity;
#pragma unroll
      for (int i = 0; i < kActive; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Rows past the last one have zeros for queries, whose score is greater than a negative one.
          if (row_of<Traits>(i, half) < rows) greatest = max_nan(greatest, scores[i][j][2 * half + e]);
        }
      }
#pragma unroll
      for (int distance = 4; distance < kWarpLanes; distance *= 2) {
        greatest = max_nan(greatest, __shfl_xor_sync(kAllLanes, greatest, distance));
      }
      const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
      if (lane < 4) atomicMax(best + j * 8 + lane * 2 + e, ordered_bits(greatest));
    }
  }
}

// Keys of a stretch of pages, each row tile of the request in turn.
template <typename Traits>
__device__ __forceinline__ void score_stretch(const SelectPagesLaunch& launch, const ScoreStretch& stretch) {
  extern __shared__ uint4 shared[];
  __shared__ uint32_t best[2][Traits::kKeys];  // of the tile in work, and of the one before
  const uint32_t query_tile = shared_address(shared);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * Traits::kKeys; i += Traits::kThreads) (&best[0][0])[i] = 0;

  AttentionWork work{};
  work.request = stretch.request;
  work.first_token = stretch.first_token;
  work.context_len = stretch.end;
  work.keys = {stretch.begin, stretch.end};
  work.end_tile = stretch.end_tile;
  WholeContext context;
  context.find(launch, stretch.request, 0);
#pragma unroll 1
  for (work.first_row = 0; work.first_row < stretch.rows; work.first_row += Traits::kRows) {
    work.rows = min(Traits::kRows, stretch.rows - work.first_row);
    const TileCopy<Traits, SelectPagesLaunch, WholeContext> copier(launch, work, context);
    KeyTileRing<Traits, decltype(copier)> ring(copier, query_tile + Traits::kQueryBytes, launch.stages,
                                               stretch.first_tile, stretch.end_tile);
    copy_queries<Traits>(launch, work, query_tile);
    ring.fill();

    const int active = active_row_blocks<Traits>(work.rows);
    // A tile's keys are stored while the next one is computed. The same thread has a page's key for every row tile.
    const auto store_keys = [&](int tile) {
      const int page_of_tile = static_cast<int>(threadIdx.x), index = tile * Traits::kKeys + page_of_tile;
      if (page_of_tile >= Traits::kKeys || index < stretch.begin || index >= stretch.end) return;
      uint32_t key = best[tile % 2][page_of_tile];
      best[tile % 2][page_of_tile] = 0;
      if (work.first_row > 0) key = max(key, stretch.keys[index]);
      stretch.keys[index] = key;
    };
    Queries<Traits> queries(query_tile);
    for (int tile = stretch.first_tile; tile < stretch.end_tile; ++tile) {
      ring.wait();
      __syncthreads();  // every thread's copies have landed, no warp reads the stage that is filled next
      if (tile == stretch.first_tile) {
        queries.load();
      } else {
        store_keys(tile - 1);
      }
      ring.copy_next();
      if (active == Traits::kRowBlocks) {
        score_tile<Traits, Traits::kRowBlocks>(queries, ring.stage(), work.rows, best[tile % 2]);
      } else if (active == 1) {
        score_tile<Traits, 1>(queries, ring.stage(), work.rows, best[tile % 2]);
      }
      ring.leave_tile();
    }
    __syncthreads();  // the last tile's keys are there, and no warp still reads queries or a stage
    store_keys(stretch.end_tile - 1);
  }
  __syncthreads();  // before the keys, and shared memory, are used for something else
}

}  // namespace dflash::cuda
