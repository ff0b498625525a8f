// Gradients of a tile's keys and values, as cuda/masked_block_attention_backward/keys.cuh says: by warpgroups.
#pragma once
#include "cuda/masked_block_attention_backward/keys.cuh"
#include "cuda/masked_block_attention_backward_sm90a/products.cuh"
#include "cuda/masked_block_attention_backward_sm90a/ring.cuh"

namespace dflash::cuda {

// The copying warpgroup: the block's keys, then rows, their terms and what they see, a step a stage.
template <typename Traits>
__device__ __forceinline__ void copy_steps(const MaskedBackwardLaunch& launch, const KeyWork& work,
                                           const SharedParts<Traits>& shared) {
  constexpr int kTermChunks = Traits::kStageRows * static_cast<int>(sizeof(MaskedRowTerms)) / 16;
  static_assert(Traits::kStageRows + kTermChunks <= Traits::kThreads, "one chunk a thread");
  const int thread = static_cast<int>(threadIdx.x), of_terms = thread - Traits::kStageRows;
  StageWriter<Traits> writer(shared);
  StepWalk<Traits> walk(launch, work);
  if (!walk.at_end()) copy_keys<Traits, Traits::kKeys>(launch, work.kv_head, work.tile, 0, shared.own());
  for (; !walk.at_end(); walk.advance()) {
    const uint32_t stage = writer.next();
    const int first_row = walk.first_row();
    copy_rows<Traits, Traits::kStageRows>(launch, work.kv_head, first_row, shared.stage(stage));
    if (of_terms < 0) {
      const int row = first_row + thread;
      const bool present = row < launch.rows;
      const uint32_t query = static_cast<uint32_t>(present ? row : 0) / launch.tiles.group;
      copy_16_bytes_async(shared_address(shared.seen(stage) + thread), launch.tiles.query_keys + query, present);
    } else if (of_terms < kTermChunks) {
      const auto* from = reinterpret_cast<const uint4*>(terms_of_head(launch, work.kv_head) + first_row) + of_terms;
      copy_16_bytes_async(shared_address(shared.terms(stage)) + of_terms * 16, from, true);
    }
    writer.close({first_row, false});
  }
  writer.finish();
}

// Rows that see all of a warpgroup's keys. `own`: its keys, their values in the block's tile behind.
template <typename Traits>
__device__ __forceinline__ void add_whole_step(float scale_log2, uint32_t own, uint32_t stage,
                                               const MaskedRowTerms* terms, KeySums<Traits>& sums) {
  const uint32_t grads = stage + Traits::kStageRowBytes;
  float weights[8][4], gradients[8][4];
  begin_products();
  start_products<Traits>(SharedTile{own}, stage, weights);
  start_products<Traits>(SharedTile{own + Traits::kKeyBytes}, grads, gradients);
  // What is in a lane: values 2 * half + e of block j belong to row 8 * j + lane % 4 * 2 + e of the step.
  const auto terms_of = [&](int j, int e) { return terms[8 * j + lane_index() % 4 * 2 + e]; };
  wait_for_products<1>(weights);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) weights[j][e] = probability_of(scale_log2, terms_of(j, e % 2), weights[j][e]);
  }
  const PackedWeights<Traits> of_values(weights);
  of_values.start_adding(grads, sums.values);
  wait_for_products<1>(gradients);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) gradients[j][e] = logit_gradient(terms_of(j, e % 2), weights[j][e], gradients[j][e]);
  }
  const PackedWeights<Traits> of_keys(gradients);
  of_keys.start_adding(stage, sums.keys);
  wait_for_products<0>(sums.values);
  wait_for_products<0>(sums.keys);
}

// An owning warpgroup: the sums of its 64 keys over all steps.
template <typename Traits>
__device__ __forceinline__ void add_steps(const MaskedBackwardLaunch& launch, const KeyWork& work,
                                          const SharedParts<Traits>& shared, KeySums<Traits>& sums) {
  const bool of_blocks = holds_blocks(launch.tiles, work.tile);
  const int first_key = keys_of_tile(launch.tiles, work.tile).begin, of_group = Traits::warpgroup() * kTileRows;
  const int of_warp = first_key + Traits::warp() * 16;
  const KeyStretch keys{first_key + of_group, first_key + of_group + kTileRows};
  const WarpKeys own{shared.own(), of_blocks, {of_warp, of_warp + 16}};
  StageReader<Traits> reader(shared);
  for (StageMark mark = reader.mark(); mark.first >= 0; mark = reader.mark()) {
    const uint32_t stage = shared.stage(reader.stage());
    const MaskedRowTerms* const terms = shared.terms(reader.stage());
    const QueryKeys* const seen_by = shared.seen(reader.stage());
    const auto seen = [&](int row) { return stretch_of(seen_by[row], of_blocks); };
    const Sight sight = sight_of_rows<Traits::kStageRows>(launch, mark.first, keys, seen);
    if (sight.some && sight.all) {
      add_whole_step<Traits>(launch.scale_log2, own.tile + of_group * Traits::kRowBytes, stage, terms, sums);
    } else if (sight.some) {
#pragma unroll 1
      for (int step = 0; step < Traits::kStageRows; step += Traits::kStepRows) {
        const auto seen_in_step = [&](int row) { return seen(step + row); };
        const Sight of_step = sight_of_rows<Traits::kStepRows>(launch, mark.first + step, own.keys, seen_in_step);
        if (!of_step.some) continue;
        add_step<Traits, true>(launch, own, stage + step * Traits::kBytesToRow, terms + step, seen_in_step, sums);
      }
    }
    reader.release();
  }
}

// Block (key tile, split, kv head).
template <typename Traits>
__device__ __forceinline__ void differentiate_keys_by_warpgroups(const MaskedBackwardLaunch& launch) {
  extern __shared__ __align__(1024) unsigned char tiles[];
  const KeyWork work(launch, static_cast<int>(blockIdx.x));
  if (work.split >= work.splits) return;
  const SharedParts<Traits> shared{tiles};
  start_ring(shared);
  if (threadIdx.x < kWarpgroupThreads) {
    give_up_registers<kCopyingRegisters>();
    copy_steps<Traits>(launch, work, shared);
    return;
  }
  take_registers<kOwningRegisters>();
  KeySums<Traits> sums;
  clear_sums<Traits>(sums.keys);
  clear_sums<Traits>(sums.values);
  add_steps<Traits>(launch, work, shared, sums);
  if (work.splits == 1) {
    write_key_sums<Traits>(launch, work.tile, work.kv_head, sums);
  } else {
    write_partial<Traits>(launch, work, sums);
  }
}

}  // namespace dflash::cuda
