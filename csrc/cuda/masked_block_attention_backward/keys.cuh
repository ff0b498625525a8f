// Gradients of a tile's keys and values, over all rows that see one of them:
//   grad_v = P^T . grad_out,  grad_k = scale * dS^T . q   with dS = P * (grad_out . v - delta).
#pragma once
#include "cuda/masked_block_attention_backward/copy.cuh"
#include "cuda/masked_block_attention_backward/tile.cuh"

namespace dflash::cuda {

// What a block has of the key tiles, which come in the order of the schedule, costliest first: a kv head and one of the
// parts of the rows that see the tile.
struct KeyWork {
  int tile, kv_head, split, splits;

  __device__ __forceinline__ KeyWork(const MaskedBackwardLaunch& launch, int block) {
    const int kv_heads = static_cast<int>(launch.op.kv_heads), item = block / kv_heads;
    kv_head = block % kv_heads;
    split = item % launch.splits;
    tile = launch.tiles.key_schedule[item / launch.splits];
    splits = of_tile(launch, tile);
  }
  // Rows of context tiles alone are many.
  static __device__ __forceinline__ int of_tile(const MaskedBackwardLaunch& launch, int tile) {
    if (holds_blocks(launch.tiles, tile)) return 1;
    const int least_tiles = kMaskedBackwardLeastRows / static_cast<int>(launch.tiles.tile_rows);
    return max(1, min(launch.splits, launch.tiles.key_tiles[tile].live_tiles / least_tiles));
  }
};

// The row tiles that see a key tile in steps of kStageRows rows: of those tiles, every `splits`-th from number `split`
// on. For a whole warp.
template <typename Traits>
class StepWalk {
  static constexpr int kSteps = Traits::kRows / Traits::kStageRows;  // of a row tile

 public:
  __device__ __forceinline__ StepWalk(const MaskedBackwardLaunch& launch, const KeyWork& work)
      : walk_(launch.tiles, work.tile, launch.tiles.key_tiles[work.tile]), skip_(work.splits), step_(0) {
    row_tile_ = walk_.first();
    skip(work.split);
  }
  __device__ __forceinline__ bool at_end() const { return row_tile_ >= walk_.end(); }
  __device__ __forceinline__ int first_row() const { return row_tile_ * Traits::kRows + step_ * Traits::kStageRows; }
  __device__ __forceinline__ void advance() {
    if (++step_ < kSteps) return;
    step_ = 0;
    skip(skip_);
  }

 private:
  __device__ __forceinline__ void skip(int tiles) {
    for (int i = 0; i < tiles && !at_end(); ++i) row_tile_ = walk_.after(row_tile_);
  }

  RowTileWalk walk_;
  int skip_, step_, row_tile_;
};

// Sums of a warp's 16 keys.
template <typename Traits>
struct KeySums {
  WarpSums<Traits> keys, values;
};

// A warp's 16 keys in shared memory.
struct WarpKeys {
  uint32_t tile;  // the key tile's first key
  bool of_blocks;
  KeyStretch keys;
};

// kStepRows rows in `stage`; the keys that row i of them sees are `seen(i)`. `masked`: some row does not see some of
// the keys.
template <typename Traits, bool kMasked, typename Seen>
__device__ __forceinline__ void add_step(const MaskedBackwardLaunch& launch, const WarpKeys& own, uint32_t stage,
                                         const MaskedRowTerms* terms, const Seen& seen, KeySums<Traits>& sums) {
  constexpr int kBlocks = Traits::kStepRows / 16;
  const int lane = lane_index();
  const uint32_t grads = stage + Traits::kStageRowBytes;
  float weights[2 * kBlocks][4], gradients[2 * kBlocks][4];
  multiply_rows<Traits, kBlocks>(SharedFragment<Traits>{own.tile, Traits::warp()}, stage, weights);
  multiply_rows<Traits, kBlocks>(SharedFragment<Traits>{own.tile + Traits::kKeyBytes, Traits::warp()}, grads,
                                 gradients);
#pragma unroll
  for (int j = 0; j < 2 * kBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int of_step = 8 * j + lane % 4 * 2 + e;
      const MaskedRowTerms row = terms[of_step];
      const KeyStretch by_row = kMasked ? seen(of_step) : KeyStretch{0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = own.keys.begin + lane / 4 + 8 * half;
        differentiate_softmax<kMasked>(launch.scale_log2, row, key >= by_row.begin && key < by_row.end,
                                       weights[j][2 * half + e], gradients[j][2 * half + e]);
      }
    }
  }
  add_rows<Traits, kBlocks, kMasked>(weights, grads, sums.values);
  add_rows<Traits, kBlocks, kMasked>(gradients, stage, sums.keys);
}

// The parts of a split tile: four values of every thread next to each other, in the order of its registers.
template <typename Traits>
__device__ __forceinline__ float4* partial_of(const MaskedBackwardLaunch& launch, int tile, int kv_head, int split) {
  const int64_t item = (static_cast<int64_t>(tile) * launch.op.kv_heads + kv_head) * launch.splits + split;
  return reinterpret_cast<float4*>(launch.partials + item * Traits::kPartialFloats);
}

template <typename Traits>
__device__ __forceinline__ void write_key_sums(const MaskedBackwardLaunch& launch, int tile, int kv_head,
                                               const KeySums<Traits>& sums) {
  using T = typename Traits::T;
  const KeyStretch keys = keys_of_tile(launch.tiles, tile);
  const bool of_blocks = holds_blocks(launch.tiles, tile);
  const auto write = [&](const WarpSums<Traits>& of_keys, float factor, const HeadRows& tensor) {
    write_sums<Traits>(of_keys, factor, [&](int half) -> T* {
      const int key = keys.begin + Traits::warp() * 16 + lane_index() / 4 + 8 * half;
      if (key >= keys.end) return nullptr;
      const int64_t row = key_row(launch.tiles, of_blocks, static_cast<uint32_t>(key));
      return static_cast<T*>(tensor.data) + row * tensor.row_stride + kv_head * tensor.head_stride;
    });
  };
  write(sums.keys, launch.op.scale, launch.op.grad_k);
  write(sums.values, 1.0f, launch.op.grad_v);
}

template <typename Traits>
__device__ __forceinline__ void write_partial(const MaskedBackwardLaunch& launch, const KeyWork& work,
                                              const KeySums<Traits>& sums) {
  float4* const partial = partial_of<Traits>(launch, work.tile, work.kv_head, work.split);
#pragma unroll
  for (int j = 0; j < Traits::kSumBlocks; ++j) {
    const auto store = [&](int block, const float (&quad)[4]) {
      partial[block * Traits::kOwners + Traits::thread()] = make_float4(quad[0], quad[1], quad[2], quad[3]);
    };
    store(j, sums.keys[j]);
    store(Traits::kSumBlocks + j, sums.values[j]);
  }
}

// Block (key tile, split, kv head).
template <typename Traits>
__device__ __forceinline__ void differentiate_keys(const MaskedBackwardLaunch& launch) {
  extern __shared__ uint4 shared[];
  const KeyWork work(launch, static_cast<int>(blockIdx.x));
  if (work.split >= work.splits) return;
  const uint32_t key_tile = shared_address(shared), first_stage = key_tile + Traits::kKeyStageBytes;
  const int first_key = keys_of_tile(launch.tiles, work.tile).begin + Traits::warp() * 16;
  const WarpKeys own{key_tile, holds_blocks(launch.tiles, work.tile), {first_key, first_key + 16}};

  StepWalk<Traits> walk(launch, work);
  const auto copy_step = [&](uint32_t stage) {
    if (walk.at_end()) return;
    copy_rows<Traits, Traits::kStageRows>(launch, work.kv_head, walk.first_row(), stage);
    constexpr int kTermChunks = Traits::kStageRows * static_cast<int>(sizeof(MaskedRowTerms)) / 16;
    if (threadIdx.x < kTermChunks) {
      const auto* from = reinterpret_cast<const uint4*>(terms_of_head(launch, work.kv_head) + walk.first_row());
      copy_16_bytes_async(stage + 2 * Traits::kStageRowBytes + threadIdx.x * 16, from + threadIdx.x, true);
    }
  };
  KeySums<Traits> sums;
  clear_sums<Traits>(sums.keys);
  clear_sums<Traits>(sums.values);
  if (!walk.at_end()) copy_keys<Traits, Traits::kKeys>(launch, work.kv_head, work.tile, 0, key_tile);
  copy_step(first_stage);
  close_copy_group();
  uint32_t stage = 0;  // 0 or 1
  while (!walk.at_end()) {
    const int first_row = walk.first_row();
    walk.advance();
    const auto seen = [&](int of_step) { return seen_by_row(launch, first_row + of_step, own.of_blocks); };
    const Sight sight = sight_of_rows<Traits::kStepRows>(launch, first_row, own.keys, seen);
    wait_for_copy_groups<0>();
    __syncthreads();  // every thread's copies have landed, and no warp reads the other stage
    copy_step(first_stage + (stage ^ 1) * Traits::kRowStageBytes);
    close_copy_group();
    const uint32_t offset = Traits::kKeyStageBytes + stage * Traits::kRowStageBytes;
    const auto* terms = reinterpret_cast<const MaskedRowTerms*>(reinterpret_cast<const unsigned char*>(shared) +
                                                                offset + 2 * Traits::kStageRowBytes);
    if (sight.some && sight.all) {
      add_step<Traits, false>(launch, own, key_tile + offset, terms, seen, sums);
    } else if (sight.some) {
      add_step<Traits, true>(launch, own, key_tile + offset, terms, seen, sums);
    }
    stage ^= 1;
  }

  if (work.splits == 1) return write_key_sums<Traits>(launch, work.tile, work.kv_head, sums);
  write_partial<Traits>(launch, work, sums);
}

// Block (context tile, kv head): adds the parts of its splits in their order.
template <typename Traits>
__device__ __forceinline__ void sum_splits(const MaskedBackwardLaunch& launch) {
  const uint32_t kv_heads = static_cast<uint32_t>(launch.op.kv_heads);
  const int tile = static_cast<int>(blockIdx.x / kv_heads), kv_head = static_cast<int>(blockIdx.x % kv_heads);
  const int splits = KeyWork::of_tile(launch, tile);
  if (splits == 1) return;
  KeySums<Traits> sums;
  clear_sums<Traits>(sums.keys);
  clear_sums<Traits>(sums.values);
#pragma unroll 1
  for (int split = 0; split < splits; ++split) {
    const float4* const partial = partial_of<Traits>(launch, tile, kv_head, split);
    const auto add = [&](int block, float (&quad)[4]) {
      const float4 part = partial[block * Traits::kOwners + Traits::thread()];
      quad[0] += part.x, quad[1] += part.y, quad[2] += part.z, quad[3] += part.w;
    };
#pragma unroll
    for (int j = 0; j < Traits::kSumBlocks; ++j) {
      add(j, sums.keys[j]);
      add(Traits::kSumBlocks + j, sums.values[j]);
    }
  }
  write_key_sums<Traits>(launch, tile, kv_head, sums);
}

}  // namespace dflash::cuda
