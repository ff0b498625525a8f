#include "cpu/block_attention.h"

#include "bindings/block_attention_checks.h"
#include "bindings/cuda_backend.h"
#include "cpu/parallel.h"
#include "plan/block_attention.h"
#include "plan/cuda/block_attention.h"

namespace dflash::bindings {
namespace {

constexpr const char* kOp = "block_attention";

// Pages wholly before the first row's window are never read: engines free them.
void check_pages(const BlockAttentionParams& params, int64_t pages) {
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t context_len = params.context_lens[request * params.context_lens_stride];
    const int64_t first = plan::visible_keys(params, context_len, 1, 0).begin / params.page_size;
    const int64_t end = (context_len + params.page_size - 1) / params.page_size;
    const int32_t* table = params.page_table + request * params.page_table_stride;
    for (int64_t i = first; i < end; ++i) check_page(kOp, table, request, i, pages);
  }
}

}  // namespace

template <Backend backend>
void block_attention(const Tensor& q, const Tensor& k_block, const Tensor& v_block, const Tensor& k_cache,
                     const Tensor& v_cache, const Tensor& page_table, const Tensor& context_lens,
                     const OptionalTensor& cu_block_lens, double scale, bool causal, int64_t window, double softcap,
                     const OptionalTensor& sinks, int64_t num_splits, const Tensor& out, const OptionalTensor& lse,
                     const Tensor& workspace) {
  BlockAttentionParams params =
      check_block_attention(kOp, q, k_block, v_block, k_cache, v_cache, page_table, context_lens, cu_block_lens, scale,
                            causal, window, softcap, sinks, out, lse);
  TensorCheck(kOp, "num_splits", q).expect(num_splits >= 0, "0 (planned) or more", std::to_string(num_splits));
  TensorCheck(kOp, "workspace", workspace).same_device(q);
  check_separate(kOp, {{"workspace", workspace}, {"out", out}, {"lse", lse}},
                 {{"q", q},
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

  if constexpr (backend == Backend::kCuda) {
    const DeviceProperties& device = cuda_device(kOp, q);
    launch_attention(kOp, q, workspace, [&] { return cuda::plan_block_attention(params, params.workspace, device); });
  } else {
    const int64_t threads = cpu::thread_count();
    const plan::BlockAttentionShape shape = plan::block_attention_shape(params, threads);
    TensorCheck(kOp, "workspace", workspace).workspace(plan::block_attention_workspace(shape).bytes);
    check_block_lengths(kOp, params.cu_block_lens, params.cu_block_lens_stride, params.batch, params.tokens);
    check_context_lens(kOp, params.context_lens, params.context_lens_stride, params.batch,
                       params.max_pages * params.page_size);
    check_pages(params, k_cache.size(0));
    if (params.batch > 0 && params.tokens > 0) cpu::block_attention(params, threads);
  }
}

}  // namespace dflash::bindings

using dflash::bindings::Backend;
DFLASH_REGISTER_OP(block_attention)
