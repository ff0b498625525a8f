#include "cpu/select_pages.h"

#include <algorithm>

#include "bindings/block_attention_checks.h"
#include "bindings/cuda_backend.h"
#include "cpu/parallel.h"
#include "plan/cuda/select_pages.h"
#include "plan/select_pages.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "select_pages";

// Of the page table only what leads to bounds that are read.
void check_pages(const SelectPagesParams& params, int64_t pages) {
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t context_len = params.context_lens[request * params.context_lens_stride];
    const PageDivision division = plan::divide_pages(params, context_len);
    const int32_t* table = params.page_table + request * params.page_table_stride;
    for (int64_t page = division.sinks; division.scored && page < division.local_begin; ++page) {
      check_page(kOp, table, request, page, pages);
    }
  }
}

}  // namespace

template <Backend backend>
void select_pages(const Tensor& q, const Tensor& k_bounds, const Tensor& page_table, const Tensor& context_lens,
                  const OptionalTensor& cu_block_lens, const OptionalTensor& group_bounds, int64_t group_pages,
                  int64_t page_size, int64_t budget_tokens, int64_t sink_tokens, int64_t local_tokens,
                  const Tensor& selected_pages, const Tensor& selected_counts, const Tensor& workspace) {
  check_queries(kOp, q);
  const int64_t tokens = q.size(0), q_heads = q.size(1), head_dim = q.size(2);
  TensorCheck(kOp, "k_bounds", k_bounds).same_device(q).same_dtype(q).shape({-1, -1, 2, head_dim}).last_contiguous();
  const int64_t kv_heads = k_bounds.size(1);
  TensorCheck(kOp, "k_bounds", k_bounds)
      .expect(kv_heads > 0 && q_heads > 0 && q_heads % kv_heads == 0,
              "kv heads that divide q's " + std::to_string(q_heads) + " heads", to_string(k_bounds));
  const int64_t batch = check_requests(kOp, q, page_table, context_lens, cu_block_lens);
  TensorCheck(kOp, "page_size", q)
      .expect(page_size > 0 && page_size <= 256 && (page_size & (page_size - 1)) == 0, "a power of two from 1 to 256",
              std::to_string(page_size));
  TensorCheck(kOp, "budget_tokens", q).expect(budget_tokens >= 0, "0 or more", std::to_string(budget_tokens));
  TensorCheck(kOp, "sink_tokens", q).expect(sink_tokens >= 0, "0 or more", std::to_string(sink_tokens));
  TensorCheck(kOp, "local_tokens", q).expect(local_tokens >= 1, "1 or more", std::to_string(local_tokens));

  if (group_bounds) {
    TensorCheck(kOp, "group_pages", q).expect(group_pages > 0, "1 or more", std::to_string(group_pages));
    TensorCheck(kOp, "group_bounds", *group_bounds)
        .same_device(q)
        .same_dtype(q)
        .shape({batch, (page_table.size(1) + group_pages - 1) / group_pages, kv_heads, 2, head_dim})
        .last_contiguous();
    if (backend == Backend::kCuda) raise(kOp, "group_bounds", "none on CUDA", to_string(*group_bounds));
  }

  SelectPagesParams params{};
  params.q = q.data_ptr();
  params.q_token_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.bounds = k_bounds.data_ptr();
  params.bounds_page_stride = k_bounds.stride(0);
  params.bounds_head_stride = k_bounds.stride(1);
  params.bounds_part_stride = k_bounds.stride(2);
  params.page_table = static_cast<const int32_t*>(page_table.data_ptr());
  params.page_table_stride = page_table.stride(0);
  params.context_lens = static_cast<const int32_t*>(context_lens.data_ptr());
  params.context_lens_stride = context_lens.stride(0);
  params.cu_block_lens = data_or_null<int32_t>(cu_block_lens);
  params.cu_block_lens_stride = cu_block_lens ? cu_block_lens->stride(0) : 0;
  params.dtype = dtype_of(q);
  params.batch = batch;
  params.tokens = tokens;
  params.q_heads = q_heads;
  params.kv_heads = kv_heads;
  params.head_dim = head_dim;
  params.max_pages = page_table.size(1);
  params.page_size = page_size;
  // No context is longer; sums with them cannot overflow.
  const int64_t capacity = std::max<int64_t>(1, params.max_pages * page_size);
  params.budget_tokens = std::min(budget_tokens, capacity);
  params.sink_tokens = std::min(sink_tokens, capacity);
  params.local_tokens = std::min(local_tokens, capacity);
  if (group_bounds) {
    params.group_bounds = group_bounds->data_ptr();
    params.group_batch_stride = group_bounds->stride(0);
    params.group_stride = group_bounds->stride(1);
    params.group_head_stride = group_bounds->stride(2);
    params.group_part_stride = group_bounds->stride(3);
    params.group_pages = group_pages;
  }

  const int64_t most = plan::most_selected_pages(params);
  TensorCheck(kOp, "selected_pages", selected_pages)
      .same_device(q)
      .dtype(ScalarType::Int)
      .shape({batch, kv_heads, -1})
      .last_contiguous()
      .writable()
      .expect(selected_pages.size(2) >= most, "at least " + std::to_string(most) + " columns (select_pages_width)",
              to_string(selected_pages));
  TensorCheck(kOp, "selected_counts", selected_counts)
      .same_device(q)
      .dtype(ScalarType::Int)
      .shape({batch, kv_heads})
      .writable();
  TensorCheck(kOp, "workspace", workspace).same_device(q);
  check_separate(kOp,
                 {{"selected_pages", selected_pages}, {"selected_counts", selected_counts}, {"workspace", workspace}},
                 {{"q", q},
                  {"k_bounds", k_bounds},
                  {"group_bounds", group_bounds},
                  {"page_table", page_table},
                  {"context_lens", context_lens},
                  {"cu_block_lens", cu_block_lens}});
  params.width = selected_pages.size(2);
  params.selected = static_cast<int32_t*>(selected_pages.data_ptr());
  params.selected_batch_stride = selected_pages.stride(0);
  params.selected_head_stride = selected_pages.stride(1);
  params.counts = static_cast<int32_t*>(selected_counts.data_ptr());
  params.counts_batch_stride = selected_counts.stride(0);
  params.counts_head_stride = selected_counts.stride(1);
  params.workspace = workspace.data_ptr();
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(kOp, q);
    launch_attention(kOp, q, workspace, [&] { return cuda::plan_select_pages(params, params.workspace, device); });
    return;
  }

  TensorCheck(kOp, "workspace", workspace)
      .workspace(plan::select_pages_workspace_bytes(batch, kv_heads, params.max_pages));
  check_block_lengths(kOp, params.cu_block_lens, params.cu_block_lens_stride, batch, tokens);
  check_context_lens(kOp, params.context_lens, params.context_lens_stride, batch, params.max_pages * page_size);
  check_pages(params, k_bounds.size(0));
  cpu::select_pages(params, cpu::thread_count());
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(select_pages)
