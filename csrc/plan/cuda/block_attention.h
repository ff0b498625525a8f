// How block_attention spreads over a GPU: which tile shapes, how many blocks, and the workspace in which the splits of
// a row tile meet.
//
// A row is one (block position, head of the group) pair, row = position * group + head, so the block and the GQA group
// share one sweep over K and V. A row tile is 64 or 128 rows of one request and kv head; its keys, the
// context followed by the block, are swept in tiles of some keys, by one block or by several (splits).
#pragma once
#include "params/block_attention.h"
#include "plan/device.h"
#include "plan/launch.h"

namespace dflash::cuda {

// Shapes that are compiled in, for each (head_dim, rows of a tile); the table with stages and blocks is in the plan.
constexpr int attention_key_tile(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 32 : 16; }
// Rows that a warp keeps in registers: 32 halve what all warps together read of a key tile from shared memory, but
// the 32 x 256 sums of head_dim 256 would not fit a lane's 255 registers.
constexpr int attention_warp_rows(int head_dim, int rows) { return rows == 128 && head_dim <= 128 ? 32 : 16; }
constexpr int attention_threads(int head_dim, int rows) { return rows / attention_warp_rows(head_dim, rows) * 32; }

// Byte strides in units of 16, all that a 32-bit product with a page or slot needs.
struct AttentionSource {
  const void* cache;
  const void* block;
  uint32_t page_stride, slot_stride, head_stride, token_stride, block_head_stride;
};

struct BlockAttentionLaunch {
  BlockAttentionParams op;
  AttentionSource k, v;
  float scale_log2;        // of logits to base 2; before the softcap: to units of the cap
  float softcap_log2;      // 0: none
  int32_t window;          // as the op\'s, at most 2^31 - 1
  int32_t capacity;        // tokens that the page table has room for
  uint32_t group;          // query heads of a kv head
  uint32_t page_shift;     // log2 of the page size
  uint32_t request_rows;   // of every request; 0: cu_block_lens says
  uint32_t request_tiles;  // row tiles of every request; 0: cu_block_lens says
  uint32_t splits;         // most splits of a request's keys
  uint32_t least_tiles;    // key tiles of a split, at least
  uint32_t stages;         // key tiles in shared memory
  uint32_t split_group;    // splits that meet before their groups do
  uint32_t counters;       // of a row tile and kv head: one for each group, and one for the groups
  uint32_t* arrivals;      // [row tiles][kv heads][counters]
  float* partials;         // [row tiles][kv heads][splits] of attention_partial_floats()
};

// The sums of a row tile in the order of the threads' registers, then maximum and denominator of each row.
constexpr int64_t attention_partial_floats(int64_t head_dim, int64_t rows) { return rows * (head_dim + 2); }

// Throws std::invalid_argument for what no kernel is compiled for: float32, head sizes other than 64, 96, 128 and 256,
// rows that are not 16-byte aligned. Blocks (row tiles, kv heads, splits).
LaunchPlan plan_block_attention(const BlockAttentionParams& params, void* workspace, const DeviceProperties& device);

struct BlockAttentionCudaShape {
  int64_t tokens, batch, q_heads, kv_heads, head_dim;
  int64_t max_context;  // max_pages * page_size
  int64_t num_splits;   // 0: planned
};

// What the plans of kernels with the same tiles share.
struct AttentionPlan {
  BlockAttentionLaunch launch;
  int entry;  // of kAttentionEntries
  int64_t row_tile;
  Dim3 grid, block;
  int64_t shared_bytes, workspace_bytes, bytes_in_flight;
};
constexpr int kAttentionEntries = 16;  // (float16, bfloat16) x (64, 96, 128, 256) x (64, 128 rows)

// As plan_block_attention. Splits are planned for contexts of up to `likely_context` rows; a call with num_splits > 0
// does not depend on it.
AttentionPlan plan_attention(const BlockAttentionParams& params, int64_t likely_context, void* workspace,
                             const DeviceProperties& device);

// Key tiles in shared memory and blocks of a multiprocessor that the plan counts on, for a head_dim with a kernel.
struct AttentionResidency {
  int64_t stages, blocks, shared_bytes;
};
AttentionResidency attention_residency(int64_t head_dim, int64_t rows, const DeviceProperties& device);
// Rows of a tile in which requests of up to `most_rows` rows are swept.
int64_t attention_row_tile(int64_t most_rows);
// Of kAttentionEntries; throws std::invalid_argument where there is none.
int attention_entry(DType dtype, int64_t head_dim, int64_t row_tile);
// `stride` elements in units of 16 bytes; throws std::invalid_argument naming `name` where it is none.
uint32_t attention_units(const char* name, int64_t stride);
void check_aligned_rows(const char* name, const void* data);

// Enough for every plan of such a call on a GPU with so many multiprocessors, whether its blocks are ragged or not.
int64_t block_attention_workspace_bytes(const BlockAttentionCudaShape& shape, int64_t multiprocessors);

}  // namespace dflash::cuda
