// How the backward pass of masked_block_attention spreads over a GPU: after the launches that describe the mask
// (plan_mask_tiles) four kernels, the sizes of their tiles, and the workspace between them.
//
// Every gradient is summed by one block in a fixed order, without atomics: that of a key tile over all rows that see
// it, that of a row tile over all keys it sees. Where a few context tiles are seen by very many rows, several blocks
// (splits) share a key tile and a last kernel adds their sums, again in a fixed order.
#pragma once
#include <vector>

#include "plan/cuda/masked_block_attention.h"

namespace dflash::cuda {

constexpr int kMaskedBackwardThreads = 128;
constexpr int kMaskedBackwardKeys = 64;  // of a key tile; 16 a warp where their gradients are summed
constexpr int kMaskedBackwardRows = 64;  // of a row tile; 16 a warp where their gradients are summed
// Of a tile's rows or keys, those that a warp's own 16 keys or rows meet at once: all, or half of them where the warp's
// sums and operands leave no room for two products with 64.
constexpr int masked_backward_step(int head_dim) { return head_dim <= 64 ? 64 : 32; }
// A context tile's rows are split where each part has so many.
constexpr int kMaskedBackwardLeastRows = 256;

// Of a row: its lse to base 2, plus infinity where it sees nothing, and the sum of grad_out * out.
struct alignas(8) MaskedRowTerms {
  float lse, delta;
};

struct MaskedBackwardLaunch {
  MaskedBlockAttentionParams op;
  MaskTiles tiles;
  float scale_log2;       // of logits to base 2
  int32_t rows;           // of a kv head
  int32_t splits;         // of a context tile's rows, at most
  MaskedRowTerms* terms;  // [kv heads][row tiles * tiles.tile_rows]
  float* partials;        // [context tiles][kv heads][splits] of masked_backward_partial_floats(); null without splits
};

// Sums of the gradients of a tile's keys and values, in the order of the threads' registers.
constexpr int64_t masked_backward_partial_floats(int64_t head_dim, int64_t keys) { return 2 * keys * head_dim; }

// ---- Kernels of sm_90a alone, with tiles twice as long

constexpr int kWarpgroupBackwardOwners = 256;  // threads of two warpgroups that own 64 keys or rows each
constexpr int kWarpgroupBackwardThreads = 128 + kWarpgroupBackwardOwners;  // and of one that copies
constexpr int kWarpgroupBackwardTile = 128;                                // keys of a key tile, rows of a row tile
constexpr int kWarpgroupBackwardStep = 64;     // rows or keys that those meet at once: a stage
constexpr int kWarpgroupBackwardStages = 4;    // steps in shared memory ...
constexpr int kWarpgroupBackwardInFlight = 2;  // ... of which so many have been requested only

// Of a stage beside its rows: what rows need and see, what the stage holds, barriers.
constexpr int64_t kWarpgroupBackwardRowBytes = sizeof(MaskedRowTerms) + sizeof(QueryKeys);
constexpr int64_t kWarpgroupBackwardStageBytes = kWarpgroupBackwardStep * kWarpgroupBackwardRowBytes + 16 + 16;
constexpr int64_t warpgroup_backward_step_bytes(int64_t head_dim) { return 2 * kWarpgroupBackwardStep * 2 * head_dim; }
// The block's own tile, and the stages.
constexpr int64_t warpgroup_backward_shared_bytes(int64_t head_dim) {
  return 2 * kWarpgroupBackwardTile * 2 * head_dim +
         kWarpgroupBackwardStages * (warpgroup_backward_step_bytes(head_dim) + kWarpgroupBackwardStageBytes);
}

// All launches of the backward pass: the mask's tiles, the rows' terms, gradients of keys and values, those of queries,
// and, where there are splits, the sum of their parts. Throws std::invalid_argument for what no kernel is compiled for:
// float32, head sizes other than 64 and 128, rows that are not 16-byte aligned. The workspace may hold anything.
std::vector<LaunchPlan> plan_masked_block_attention_backward(const MaskedBlockAttentionParams& params, void* workspace,
                                                             const DeviceProperties& device);

// Grows with the number of queries and of keys.
int64_t masked_block_attention_backward_workspace_bytes(const MaskedBlockAttentionParams& params,
                                                        const DeviceProperties& device);

}  // namespace dflash::cuda
