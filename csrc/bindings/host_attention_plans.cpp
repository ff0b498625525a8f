#include "bindings/host_params.h"
#include "bindings/host_plans.h"
#include "plan/cuda/select_pages.h"
#include "plan/cuda/sparse_block_attention.h"

namespace py = pybind11;

namespace dflash::bindings {

void bind_block_attention(py::module_& module) {
  using Params = BlockAttentionParams;
  ParamsClass<Params>(module, "BlockAttentionParams")
      .field("q", &Params::q)
      .field("q_token_stride", &Params::q_token_stride)
      .field("q_head_stride", &Params::q_head_stride)
      .field("k_block", &Params::k_block)
      .field("k_block_token_stride", &Params::k_block_token_stride)
      .field("k_block_head_stride", &Params::k_block_head_stride)
      .field("v_block", &Params::v_block)
      .field("v_block_token_stride", &Params::v_block_token_stride)
      .field("v_block_head_stride", &Params::v_block_head_stride)
      .field("k_cache", &Params::k_cache)
      .field("k_page_stride", &Params::k_page_stride)
      .field("k_slot_stride", &Params::k_slot_stride)
      .field("k_head_stride", &Params::k_head_stride)
      .field("v_cache", &Params::v_cache)
      .field("v_page_stride", &Params::v_page_stride)
      .field("v_slot_stride", &Params::v_slot_stride)
      .field("v_head_stride", &Params::v_head_stride)
      .field("page_table", &Params::page_table)
      .field("page_table_stride", &Params::page_table_stride)
      .field("context_lens", &Params::context_lens)
      .field("context_lens_stride", &Params::context_lens_stride)
      .field("cu_block_lens", &Params::cu_block_lens)
      .field("cu_block_lens_stride", &Params::cu_block_lens_stride)
      .field("sinks", &Params::sinks)
      .field("sinks_stride", &Params::sinks_stride)
      .field("out", &Params::out)
      .field("out_token_stride", &Params::out_token_stride)
      .field("out_head_stride", &Params::out_head_stride)
      .field("lse", &Params::lse)
      .field("lse_token_stride", &Params::lse_token_stride)
      .field("lse_head_stride", &Params::lse_head_stride)
      .field("workspace", &Params::workspace)
      .field("dtype", &Params::dtype)
      .field("batch", &Params::batch)
      .field("tokens", &Params::tokens)
      .field("q_heads", &Params::q_heads)
      .field("kv_heads", &Params::kv_heads)
      .field("head_dim", &Params::head_dim)
      .field("page_size", &Params::page_size)
      .field("max_pages", &Params::max_pages)
      .field("scale", &Params::scale)
      .field("causal", &Params::causal)
      .field("window", &Params::window)
      .field("softcap", &Params::softcap)
      .field("num_splits", &Params::num_splits);
  module.def(
      "plan_block_attention",
      [](const Params& params, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_block_attention(params, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def(
      "block_attention_cuda_workspace_size",
      [](int64_t tokens, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t max_context,
         int64_t num_splits, int64_t multiprocessors) {
        return cuda::block_attention_workspace_bytes(
            {tokens, batch, q_heads, kv_heads, head_dim, max_context, num_splits}, multiprocessors);
      },
      py::arg("tokens"), py::arg("batch"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
      py::arg("max_context"), py::arg("num_splits"), py::arg("multiprocessors"));
  ParamsClass<PageSelection>(module, "PageSelection")
      .field("selected", &PageSelection::selected)
      .field("batch_stride", &PageSelection::batch_stride)
      .field("head_stride", &PageSelection::head_stride)
      .field("counts", &PageSelection::counts)
      .field("counts_batch_stride", &PageSelection::counts_batch_stride)
      .field("counts_head_stride", &PageSelection::counts_head_stride);
  module.def(
      "plan_sparse_block_attention",
      [](const Params& params, const PageSelection& selection, int64_t width, uintptr_t workspace,
         const DeviceProperties& device) {
        return cuda::plan_sparse_block_attention(params, selection, width, pointer(workspace), device);
      },
      py::arg("params"), py::arg("selection"), py::arg("width"), py::arg("workspace"), py::arg("device"));
  // No selection makes a plan that takes more than the whole context does.
  module.def(
      "sparse_block_attention_cuda_workspace_size",
      [](int64_t tokens, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t max_pages,
         int64_t page_size, int64_t num_splits, int64_t multiprocessors) {
        return cuda::block_attention_workspace_bytes(
            {tokens, batch, q_heads, kv_heads, head_dim, max_pages * page_size, num_splits}, multiprocessors);
      },
      py::arg("tokens"), py::arg("batch"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
      py::arg("max_pages"), py::arg("page_size"), py::arg("num_splits"), py::arg("multiprocessors"));
}

void bind_select_pages(py::module_& module) {
  using Params = SelectPagesParams;
  ParamsClass<Params>(module, "SelectPagesParams")
      .field("q", &Params::q)
      .field("q_token_stride", &Params::q_token_stride)
      .field("q_head_stride", &Params::q_head_stride)
      .field("bounds", &Params::bounds)
      .field("bounds_page_stride", &Params::bounds_page_stride)
      .field("bounds_head_stride", &Params::bounds_head_stride)
      .field("bounds_part_stride", &Params::bounds_part_stride)
      .field("page_table", &Params::page_table)
      .field("page_table_stride", &Params::page_table_stride)
      .field("context_lens", &Params::context_lens)
      .field("context_lens_stride", &Params::context_lens_stride)
      .field("cu_block_lens", &Params::cu_block_lens)
      .field("cu_block_lens_stride", &Params::cu_block_lens_stride)
      .field("selected", &Params::selected)
      .field("selected_batch_stride", &Params::selected_batch_stride)
      .field("selected_head_stride", &Params::selected_head_stride)
      .field("counts", &Params::counts)
      .field("counts_batch_stride", &Params::counts_batch_stride)
      .field("counts_head_stride", &Params::counts_head_stride)
      .field("dtype", &Params::dtype)
      .field("batch", &Params::batch)
      .field("tokens", &Params::tokens)
      .field("q_heads", &Params::q_heads)
      .field("kv_heads", &Params::kv_heads)
      .field("head_dim", &Params::head_dim)
      .field("max_pages", &Params::max_pages)
      .field("page_size", &Params::page_size)
      .field("width", &Params::width)
      .field("budget_tokens", &Params::budget_tokens)
      .field("sink_tokens", &Params::sink_tokens)
      .field("local_tokens", &Params::local_tokens);
  module.def(
      "plan_select_pages",
      [](const Params& params, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_select_pages(params, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def("select_pages_cuda_workspace_size", &cuda::select_pages_workspace_bytes, py::arg("batch"),
             py::arg("kv_heads"), py::arg("max_pages"));
}

}  // namespace dflash::bindings
