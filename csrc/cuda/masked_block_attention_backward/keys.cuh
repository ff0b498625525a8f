// Gradients of a tile's keys and values, over all rows that see one of them:
//   grad_v = P^T . grad_out,  grad_k = scale * dS^T . q   with dS = P * (grad_out . v - delta).
#pragma once
#include "cuda/masked_block_attention_backward/copy.cuh"
#include "cuda/masked_block_attention_backward/tile.cuh"

namespace dflash::cuda {

// Which key tile a block has: each of the first split_tiles is that of `splits` blocks.
struct KeyWork {
  int tile, head, split, splits;

  __device__ __forceinline__ explicit KeyWork(const MaskedBackwardLaunch& launch)
      : head(head_of_block(launch)), split(0), splits(1) {
    const int item = tile_of_block(launch), shared = launch.split_tiles * launch.splits;
    if (item < shared) {
      tile = item / launch.splits;
      split = item % launch.splits;
      splits = launch.splits;
    } else {
      tile = launch.split_tiles + item - shared;
    }
  }
};

// The row tiles with a row that sees a key of the tile, in their order; of those, every `splits`-th from number `split`
// on. For a whole warp; 32 tiles are looked at together.
class RowWalk {
 public:
  __device__ __forceinline__ RowWalk(const MaskedBackwardLaunch& launch, const KeyWork& work, int first_key,
                                     int end_key)
      : launch_(launch), skip_(work.split), splits_(work.splits), first_key_(first_key), end_key_(end_key) {
    look(0);
  }

  // The next one; launch.row_tiles behind the last.
  __device__ __forceinline__ int next() {
    while (true) {
      while (found_ == 0) {
        if (base_ + kWarpLanes >= launch_.row_tiles) return launch_.row_tiles;
        look(base_ + kWarpLanes);
      }
      const int tile = base_ + __ffs(static_cast<int>(found_)) - 1;
      found_ &= found_ - 1;
      if (skip_ == 0) {
        skip_ = splits_ - 1;
        return tile;
      }
      --skip_;
    }
  }

 private:
  __device__ __forceinline__ void look(int base) {
    base_ = base;
    const int tile = base + static_cast<int>(threadIdx.x % kWarpLanes);
    const bool seen = tile < launch_.row_tiles && meets(launch_.tile_keys[tile].any, first_key_, end_key_);
    found_ = __ballot_sync(kAllLanes, seen);
  }

  const MaskedBackwardLaunch& launch_;
  int skip_, splits_, first_key_, end_key_;
  int base_;
  uint32_t found_;
};

// Sums of a warp's 16 keys.
template <typename Traits>
struct KeySums {
  WarpSums<Traits> keys, values;
};

// A row tile in `stage`, for a warp whose 16 keys begin at `first_key`. `masked`: some row does not see some of them.
template <typename Traits, bool kMasked>
__device__ __forceinline__ void add_row_tile(const MaskedBackwardLaunch& launch, int row_tile, int first_key,
                                             uint32_t keys, uint32_t stage, const MaskedRowTerms* terms,
                                             KeySums<Traits>& sums) {
  constexpr int kBlocks = Traits::kRows / 16;
  const int warp = static_cast<int>(threadIdx.x / kWarpLanes), lane = static_cast<int>(threadIdx.x % kWarpLanes);
  const uint32_t grads = stage + Traits::kRowTileBytes;
  float weights[2 * kBlocks][4], gradients[2 * kBlocks][4];
  multiply_rows<Traits, kBlocks>(SharedFragment<Traits>{keys, warp}, stage, weights);
  multiply_rows<Traits, kBlocks>(SharedFragment<Traits>{keys + Traits::kKeyBytes, warp}, grads, gradients);
#pragma unroll
  for (int j = 0; j < 2 * kBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int of_tile = 8 * j + lane % 4 * 2 + e;
      const MaskedRowTerms row = terms[of_tile];
      MaskedKeys visible{};
      if (kMasked) {
        const int index = min(row_tile * Traits::kRows + of_tile, launch.rows - 1);
        visible = launch.query_keys[index / launch.group];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        differentiate_softmax<kMasked>(launch.scale_log2, row, sees(visible, first_key + lane / 4 + 8 * half),
                                       weights[j][2 * half + e], gradients[j][2 * half + e]);
      }
    }
  }
  add_rows<Traits, kBlocks, kMasked>(weights, grads, sums.values);
  add_rows<Traits, kBlocks, kMasked>(gradients, stage, sums.keys);
}

// The parts of a split tile: four values of every thread next to each other, in the order of its registers.
template <typename Traits>
__device__ __forceinline__ float4* partial_of(const MaskedBackwardLaunch& launch, int tile, int head, int split) {
  const int64_t item = (static_cast<int64_t>(tile) * launch.op.kv_heads + head) * launch.splits + split;
  return reinterpret_cast<float4*>(launch.partials + item * Traits::kPartialFloats);
}

template <typename Traits>
__device__ __forceinline__ void write_key_sums(const MaskedBackwardLaunch& launch, int tile, int head,
                                               const KeySums<Traits>& sums) {
  using T = typename Traits::T;
  const int first = tile * Traits::kKeys + static_cast<int>(threadIdx.x) / kWarpLanes * 16 +
                    static_cast<int>(threadIdx.x % kWarpLanes) / 4;
  const auto target = [&](const HeadRows& tensor) {
    return [&launch, &tensor, head, first](int half) -> T* {
      const int key = first + 8 * half;
      return key < launch.op.keys ? key_of_head<T>(tensor, head, key) : nullptr;
    };
  };
  write_sums<Traits>(sums.keys, launch.op.scale, target(launch.op.grad_k));
  write_sums<Traits>(sums.values, 1.0f, target(launch.op.grad_v));
}

// Block (key tile, kv head, split).
template <typename Traits>
__device__ __forceinline__ void differentiate_keys(const MaskedBackwardLaunch& launch) {
  extern __shared__ uint4 shared[];
  const KeyWork work(launch);
  const uint32_t keys = shared_address(shared), first_stage = keys + Traits::kKeyStageBytes;
  const int first_key = work.tile * Traits::kKeys;
  const int warp_key = first_key + static_cast<int>(threadIdx.x) / kWarpLanes * 16;
  const MaskedRowTerms* const terms = terms_of_head(launch, work.head, Traits::kRows);

  const auto copy_stage = [&](int row_tile, uint32_t stage) {
    if (row_tile >= launch.row_tiles) return;
    copy_rows<Traits, Traits::kRows>(launch, work.head, row_tile * Traits::kRows, stage);
    constexpr int kTermChunks = Traits::kRows * static_cast<int>(sizeof(MaskedRowTerms)) / 16;
    if (threadIdx.x < kTermChunks) {
      const auto* from = reinterpret_cast<const uint4*>(terms + static_cast<int64_t>(row_tile) * Traits::kRows);
      copy_16_bytes_async(stage + 2 * Traits::kRowTileBytes + threadIdx.x * 16, from + threadIdx.x, true);
    }
  };

  RowWalk walk(launch, work, first_key, first_key + Traits::kKeys);
  int row_tile = walk.next();
  KeySums<Traits> sums;
  clear_sums<Traits>(sums.keys);
  clear_sums<Traits>(sums.values);
  if (row_tile < launch.row_tiles) copy_keys<Traits>(launch, work.head, work.tile, keys);
  copy_stage(row_tile, first_stage);
  close_copy_group();
  uint32_t stage_number = 0;
  while (row_tile < launch.row_tiles) {
    const int next = walk.next();
    wait_for_copy_groups<0>();
    __syncthreads();  // every thread's copies have landed, and no warp reads the other stage
    copy_stage(next, first_stage + (stage_number ^ 1) * Traits::kRowStageBytes);
    close_copy_group();
    const MaskedTileKeys seen = launch.tile_keys[row_tile];
    if (meets(seen.any, warp_key, warp_key + 16)) {
      const uint32_t stage = first_stage + stage_number * Traits::kRowStageBytes;
      const auto* of_rows = reinterpret_cast<const MaskedRowTerms*>(reinterpret_cast<const unsigned char*>(shared) +
                                                                    (stage - keys) + 2 * Traits::kRowTileBytes);
      if (covers(seen.all, warp_key, warp_key + 16)) {
        add_row_tile<Traits, false>(launch, row_tile, warp_key, keys, stage, of_rows, sums);
      } else {
        add_row_tile<Traits, true>(launch, row_tile, warp_key, keys, stage, of_rows, sums);
      }
    }
    row_tile = next;
    stage_number ^= 1;
  }

  if (work.splits == 1) return write_key_sums<Traits>(launch, work.tile, work.head, sums);
  float4* const partial = partial_of<Traits>(launch, work.tile, work.head, work.split);
#pragma unroll
  for (int j = 0; j < Traits::kSumBlocks; ++j) {
    const auto store = [&](int block, const float (&quad)[4]) {
      partial[block * Traits::kThreads + threadIdx.x] = make_float4(quad[0], quad[1], quad[2], quad[3]);
    };
    store(j, sums.keys[j]);
    store(Traits::kSumBlocks + j, sums.values[j]);
  }
}

// Block (key tile, kv head): adds the parts of its splits in their order.
template <typename Traits>
__device__ __forceinline__ void sum_splits(const MaskedBackwardLaunch& launch) {
  const int tile = tile_of_block(launch), head = head_of_block(launch);
  KeySums<Traits> sums;
  clear_sums<Traits>(sums.keys);
  clear_sums<Traits>(sums.values);
#pragma unroll 1
  for (int split = 0; split < launch.splits; ++split) {
    const float4* const partial = partial_of<Traits>(launch, tile, head, split);
    const auto add = [&](int block, float (&quad)[4]) {
      const float4 part = partial[block * Traits::kThreads + threadIdx.x];
      quad[0] += part.x, quad[1] += part.y, quad[2] += part.z, quad[3] += part.w;
    };
#pragma unroll
    for (int j = 0; j < Traits::kSumBlocks; ++j) {
      add(j, sums.keys[j]);
      add(Traits::kSumBlocks + j, sums.values[j]);
    }
  }
  write_key_sums<Traits>(launch, tile, head, sums);
}

}  // namespace dflash::cuda
