// How the backward pass of masked_block_attention spreads over a GPU: four kernels, the sizes of their tiles, and the
// workspace between them.
//
// A row is one (query, head of the group) pair, row = query * group + head, of one kv head. Every gradient is summed by
// one block in a fixed order, without atomics: that of a key tile over all rows that see it, that of a row tile over
// all keys it sees. Where a few key tiles are seen by very many rows, several blocks (splits) share a key tile and a
// last kernel adds their sums, again in a fixed order.
#pragma once
#include <vector>

#include "params/masked_block_attention.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

constexpr int kMaskedBackwardThreads = 128;
constexpr int kMaskedBackwardKeys = 64;       // of a key tile; 16 a warp where their gradients are summed
constexpr int kMaskedBackwardQueryRows = 64;  // of a row tile whose gradients are summed; 16 a warp
// Rows that a key tile meets at once. The 2 x 16 x 128 sums of a warp leave room for products with 32 rows.
constexpr int masked_backward_rows(int head_dim) { return head_dim <= 64 ? 64 : 32; }

// Of a row: its lse to base 2, plus infinity where it sees nothing, and the sum of grad_out * out.
struct MaskedRowTerms {
  float lse, delta;
};
struct MaskedKeys {
  int32_t context_begin, context_end, block_begin, block_end;
};
// Keys that some of a tile's rows see, and keys that each of them sees.
struct MaskedTileKeys {
  MaskedKeys any, all;
};

struct MaskedBackwardLaunch {
  MaskedBlockAttentionParams op;
  float scale_log2;  // of logits to base 2
  int32_t group;     // query heads of a kv head
  int32_t rows;      // of a kv head
  int32_t row_tiles, key_tiles, query_tiles;
  int32_t splits;             // blocks of each of the first split_tiles key tiles
  int32_t split_tiles;        // the others have one block
  MaskedRowTerms* terms;      // [kv heads][row_tiles * masked_backward_rows]
  MaskedKeys* query_keys;     // [queries]
  MaskedTileKeys* tile_keys;  // [row_tiles]
  float* partials;            // [split_tiles][kv heads][splits] of masked_backward_partial_floats()
};

// Sums of the gradients of a tile's keys and values, in the order of the threads' registers.
constexpr int64_t masked_backward_partial_floats(int64_t head_dim) { return 2 * kMaskedBackwardKeys * head_dim; }

// In the order of their launches: what rows need (terms, visible keys), gradients of keys and values, those of queries,
// and, where there are splits, the sum of their parts. Throws std::invalid_argument for what no kernel is compiled for:
// float32, head sizes other than 64 and 128, rows that are not 16-byte aligned. The workspace may hold anything.
std::vector<LaunchPlan> plan_masked_block_attention_backward(const MaskedBlockAttentionParams& params, void* workspace,
                                                             const DeviceProperties& device);

// What such plans use of their workspace; grows with the number of queries and of keys.
int64_t masked_block_attention_backward_workspace_bytes(const MaskedBlockAttentionParams& params,
                                                        const DeviceProperties& device);

}  // namespace dflash::cuda
