// dflash_ops._host: what the host side knows without torch: build facts, workspace sizes, CUDA launch plans.
#include <pybind11/pybind11.h>

#include "bindings/host_plans.h"
#include "plan/block_attention.h"
#include "plan/fuse_features.h"
#include "plan/lm_head_argmax.h"
#include "plan/project_context_kv.h"
#include "plan/select_pages.h"
#include "plan/size.h"

namespace py = pybind11;

PYBIND11_MODULE(_host, m) {
  m.doc() = "Host-side facts and plans of dflash_ops";
  m.def("build_info", [] {
    py::dict info;
    info["version"] = DFLASH_VERSION;
    info["compiler"] = DFLASH_COMPILER;
    info["torch_built_with"] = DFLASH_TORCH_VERSION;
    info["torch_stable_abi"] = "2.10";
    info["cuda_toolkit"] = DFLASH_CUDA_TOOLKIT;
    info["cuda_archs"] = DFLASH_CUDA_ARCHS;
    return info;
  });
  m.def(
      "block_attention_workspace_size",
      [](int64_t tokens, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t max_context,
         int64_t num_splits, int64_t threads) {
        return dflash::plan::block_attention_workspace(
                   {batch, tokens, q_heads, kv_heads, head_dim, max_context, num_splits, threads})
            .bytes;
      },
      py::arg("tokens"), py::arg("batch"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
      py::arg("max_context"), py::arg("num_splits"), py::arg("threads"));
  m.def("select_pages_workspace_size", &dflash::plan::select_pages_workspace_bytes, py::arg("batch"),
        py::arg("kv_heads"), py::arg("max_pages"));
  m.def(
      "sparse_block_attention_workspace_size",
      [](int64_t tokens, int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t max_pages,
         int64_t page_size, int64_t num_splits, int64_t threads) {
        return dflash::plan::sparse_block_attention_workspace(
                   {batch, tokens, q_heads, kv_heads, head_dim, (dflash::plan::Size(max_pages) * page_size).value(),
                    num_splits, threads},
                   max_pages)
            .bytes;
      },
      py::arg("tokens"), py::arg("batch"), py::arg("q_heads"), py::arg("kv_heads"), py::arg("head_dim"),
      py::arg("max_pages"), py::arg("page_size"), py::arg("num_splits"), py::arg("threads"));
  m.def(
      "fuse_features_workspace_size",
      [](int64_t rows, int64_t taps, int64_t tap_columns, int64_t columns) {
        return dflash::plan::fuse_features_workspace(rows, taps, tap_columns, columns).bytes;
      },
      py::arg("rows"), py::arg("taps"), py::arg("tap_columns"), py::arg("columns"));
  m.def(
      "project_context_kv_workspace_size",
      [](int64_t rows, int64_t hidden_size, int64_t columns) {
        return dflash::plan::project_context_kv_workspace(rows, hidden_size, columns).bytes;
      },
      py::arg("rows"), py::arg("hidden_size"), py::arg("columns"));
  m.def(
      "lm_head_argmax_workspace_size",
      [](int64_t rows, int64_t hidden_size, int64_t vocab_size) {
        return dflash::plan::lm_head_argmax_plan(rows, hidden_size, vocab_size).bytes;
      },
      py::arg("rows"), py::arg("hidden_size"), py::arg("vocab_size"));
  dflash::bindings::bind_cuda_plans(m);
}
