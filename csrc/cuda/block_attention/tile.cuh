// One key tile in shared memory: scores, weights, sums. See docs/kernels/block_attention.md for the data's way.
#pragma once
#include "cuda/block_attention/softmax.cuh"
#include "cuda/common/attention_products.cuh"

namespace dflash::cuda {

// `kActive`: row blocks of this warp that hold rows. `masked`: some row does not see some key of the tile.
template <typename Traits, int kActive>
__device__ __forceinline__ void attend_tile(const BlockAttentionLaunch& launch, const AttentionWork& work, int tile,
                                            bool masked, uint32_t stage, const Queries<Traits>& queries,
                                            RowSums<Traits>& sums) {
  Scores<Traits> scores;
  multiply_keys<Traits, kActive>(queries, stage, scores);
  scale_scores<Traits, kActive>(launch, scores);
  if (masked) mask_scores<Traits, kActive>(launch, work, tile, scores);
  weigh_scores<Traits, kActive>(scores, sums);
  add_values<Traits, kActive>(scores, stage + Traits::kTileBytes, sums);
}

}  // namespace dflash::cuda
