#include "cpu/sparse_block_attention.h"

#include "bindings/block_attention_checks.h"
#include "bindings/cuda_backend.h"
#include "cpu/parallel.h"
#include "plan/cuda/sparse_block_attention.h"
#include "plan/select_pages.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "sparse_block_attention";

// The selection has to rise, and the pages it leads to have to exist.
void check_selection(const BlockAttentionParams& params, const PageSelection& selection, int64_t width, int64_t pages) {
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t context_len = params.context_lens[request * params.context_lens_stride];
    const int64_t context_pages = (context_len + params.page_size - 1) / params.page_size;
    const int32_t* table = params.page_table + request * params.page_table_stride;
    for (int64_t head = 0; head < params.kv_heads; ++head) {
      const std::string list = "[" + std::to_string(request) + ", " + std::to_string(head);
      const int64_t count =
          selection.counts[request * selection.counts_batch_stride + head * selection.counts_head_stride];
      if (count < 0 || count > width) {
        raise(kOp, "selected_counts" + list + "]", "0 to " + std::to_string(width), std::to_string(count));
      }
      const int32_t* selected = selection.selected + request * selection.batch_stride + head * selection.head_stride;
      int64_t next = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (selected[i] < next) {
          raise(kOp, "selected_pages" + list + ", " + std::to_string(i) + "]",
                i == 0 ? "0 or more" : "more than " + std::to_string(next - 1), std::to_string(selected[i]));
        }
        if (selected[i] >= context_pages) break;
        next = int64_t{selected[i]} + 1;
        check_page(kOp, table, request, selected[i], pages);
      }
      for (; next < context_pages; ++next) check_page(kOp, table, request, next, pages);
    }
  }
}

}  // namespace

template <Backend backend>
void sparse_block_attention(const Tensor& q, const Tensor& k_block, const Tensor& v_block, const Tensor& k_cache,
                            const Tensor& v_cache, const Tensor& page_table, const Tensor& context_lens,
                            const Tensor& selected_pages, const Tensor& selected_counts,
                            const OptionalTensor& cu_block_lens, double scale, bool causal, double softcap,
                            const OptionalTensor& sinks, int64_t num_splits, const Tensor& out,
                            const OptionalTensor& lse, const Tensor& workspace) {
  BlockAttentionParams params =
      check_block_attention(kOp, q, k_block, v_block, k_cache, v_cache, page_table, context_lens, cu_block_lens, scale,
                            causal, 0, softcap, sinks, out, lse);
  TensorCheck(kOp, "selected_pages", selected_pages)
      .same_device(q)
      .dtype(ScalarType::Int)
      .shape({params.batch, params.kv_heads, -1})
      .last_contiguous();
  TensorCheck(kOp, "selected_counts", selected_counts)
      .same_device(q)
      .dtype(ScalarType::Int)
      .shape({params.batch, params.kv_heads});
  TensorCheck(kOp, "num_splits", q).expect(num_splits >= 0, "0 (planned) or more", std::to_string(num_splits));
  TensorCheck(kOp, "workspace", workspace).same_device(q);
  check_separate(kOp, {{"workspace", workspace}, {"out", out}, {"lse", lse}},
                 {{"selected_pages", selected_pages},
                  {"selected_counts", selected_counts},
                  {"q", q},
                  {"k_block", k_block},
                  {"v_block", v_block},
                  {"k_cache", k_cache},
                  {"v_cache", v_cache},
                  {"page_table", page_table},
                  {"context_lens", context_lens},
                  {"cu_block_lens", cu_block_lens},
                  {"sinks", sinks}});
  params.num_splits = num_splits;
  params.workspace = workspace.data_ptr();
  const PageSelection selection{
      static_cast<const int32_t*>(selected_pages.data_ptr()),  selected_pages.stride(0),  selected_pages.stride(1),
      static_cast<const int32_t*>(selected_counts.data_ptr()), selected_counts.stride(0), selected_counts.stride(1)};

  const int64_t width = selected_pages.size(2);
  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(kOp, q);
    launch_attention(kOp, q, workspace, [&] {
      return cuda::plan_sparse_block_attention(params, selection, width, params.workspace, device);
    });
    return;
  }
  const int64_t threads = cpu::thread_count();
  const plan::BlockAttentionShape shape = plan::block_attention_shape(params, threads);
  TensorCheck(kOp, "workspace", workspace)
      .workspace(plan::sparse_block_attention_workspace(shape, params.max_pages).bytes);
  check_block_lengths(kOp, params.cu_block_lens, params.cu_block_lens_stride, params.batch, params.tokens);
  check_context_lens(kOp, params.context_lens, params.context_lens_stride, params.batch,
                     params.max_pages * params.page_size);
  check_selection(params, selection, width, k_cache.size(0));
  if (params.batch > 0 && params.tokens > 0) cpu::sparse_block_attention(params, selection, threads);
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(sparse_block_attention)
