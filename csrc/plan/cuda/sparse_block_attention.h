// sparse_block_attention on a GPU: block_attention's kernel and plan, with a selection in the page table's place.
#pragma once
#include "params/select_pages.h"
#include "plan/cuda/block_attention.h"

namespace dflash::cuda {

struct SparseBlockAttentionLaunch {
  BlockAttentionLaunch attention;
  PageSelection selection;
  int32_t width;       // entries of a list of selected pages
  uint32_t max_pages;  // columns of the page table
};

// As plan_block_attention. `width`: entries of a list of selected pages, what splits are planned for.
LaunchPlan plan_sparse_block_attention(const BlockAttentionParams& params, const PageSelection& selection,
                                       int64_t width, void* workspace, const DeviceProperties& device);

}  // namespace dflash::cuda
