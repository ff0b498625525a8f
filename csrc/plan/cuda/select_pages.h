// select_pages on a GPU: the bounds are swept as block_attention sweeps keys and values, minima in the keys' place,
// maxima in the values', a page in the place of a position.
#pragma once
#include "params/select_pages.h"
#include "plan/cuda/block_attention.h"

namespace dflash::cuda {

struct SelectPagesLaunch {
  SelectPagesParams op;
  AttentionSource k, v;        // minima and maxima; nothing but a cache
  uint32_t page_shift;         // 0: a page of bounds has one row of each
  int32_t context_page_shift;  // log2 of the context's page size
  int32_t capacity;            // tokens that the page table has room for
  uint32_t group;              // query heads of a kv head
  uint32_t stretches;          // most stretches of a request's pages
  uint32_t least_tiles;        // tiles of pages of a stretch, at least
  uint32_t stages;             // tiles in shared memory
  int32_t shared_keys;         // that shared memory has room for when pages are chosen
  uint32_t* arrivals;          // [batch][kv heads]
  uint32_t* keys;              // [batch][kv heads][max_pages]: greater for a greater score
};

constexpr int kDigitBits = 8;  // of a key that pages are chosen by in one step
constexpr int kDigits = 1 << kDigitBits;

// Throws std::invalid_argument for what no kernel is compiled for, as plan_block_attention. Blocks (request and stretch
// of its pages, kv head); the last one of a request and head to arrive chooses.
LaunchPlan plan_select_pages(const SelectPagesParams& params, void* workspace, const DeviceProperties& device);

// On any device.
int64_t select_pages_workspace_bytes(int64_t batch, int64_t kv_heads, int64_t max_pages);

}  // namespace dflash::cuda
