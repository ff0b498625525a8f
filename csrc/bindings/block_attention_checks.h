// Checks that the attention ops over a paged context share.
#pragma once
#include <functional>

#include "bindings/checks.h"
#include "params/block_attention.h"
#include "plan/launch.h"

namespace dflash::bindings {

// Queries [tokens, q_heads, head_dim].
void check_queries(const char* op, const Tensor& q);
// Who the rows of q belong to, and the requests' contexts. Returns the number of requests.
int64_t check_requests(const char* op, const Tensor& q, const Tensor& page_table, const Tensor& context_lens,
                       const OptionalTensor& cu_block_lens);

// Everything but the workspace, num_splits and what needs a look at data. Workspace and num_splits are left for the
// caller to set.
BlockAttentionParams check_block_attention(const char* op, const Tensor& q, const Tensor& k_block,
                                           const Tensor& v_block, const Tensor& k_cache, const Tensor& v_cache,
                                           const Tensor& page_table, const Tensor& context_lens,
                                           const OptionalTensor& cu_block_lens, double scale, bool causal,
                                           int64_t window, double softcap, const OptionalTensor& sinks,
                                           const Tensor& out, const OptionalTensor& lse);

// The checks below read data, which only the CPU can do before anything is written.
void check_block_lengths(const char* op, const int32_t* cu_block_lens, int64_t cu_block_lens_stride, int64_t batch,
                         int64_t tokens);
void check_context_lens(const char* op, const int32_t* context_lens, int64_t context_lens_stride, int64_t batch,
                        int64_t capacity);
// Entry `index` of the request's row `table` of the page table.
void check_page(const char* op, const int32_t* table, int64_t request, int64_t index, int64_t pages);

// Makes the plan, checks the workspace and launches. The plan refuses what the kernels are not made for: float32, other
// head sizes, rows that are not aligned.
void launch_attention(const char* op, const Tensor& q, const Tensor& workspace,
                      const std::function<LaunchPlan()>& make_plan);

}  // namespace dflash::bindings
