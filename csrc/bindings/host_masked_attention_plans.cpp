#include <pybind11/stl.h>

#include <string>

#include "bindings/host_params.h"
#include "bindings/host_plans.h"
#include "plan/cuda/masked_block_attention.h"

namespace py = pybind11;

namespace dflash::bindings {
namespace {

using Params = MaskedBlockAttentionParams;

// A tensor's fields: its address under `name`, and its strides.
void bind_head_rows(ParamsClass<Params>& params, const std::string& name, HeadRows Params::* rows) {
  params.property(
      name.c_str(), [rows](const Params& self) { return reinterpret_cast<uintptr_t>((self.*rows).data); },
      [rows](Params& self, uintptr_t address) { (self.*rows).data = pointer(address); });
  params.property((name + "_row_stride").c_str(), [rows](const Params& self) { return (self.*rows).row_stride; },
                  [rows](Params& self, int64_t stride) { (self.*rows).row_stride = stride; });
  params.property((name + "_head_stride").c_str(), [rows](const Params& self) { return (self.*rows).head_stride; },
                  [rows](Params& self, int64_t stride) { (self.*rows).head_stride = stride; });
}

}  // namespace

void bind_masked_block_attention(py::module_& module) {
  py::enum_<MaskMode>(module, "MaskMode")
      .value("anchor", MaskMode::kAnchor)
      .value("block_causal", MaskMode::kBlockCausal)
      .value("bidirectional", MaskMode::kBidirectional)
      .value("causal", MaskMode::kCausal);
  ParamsClass<Params> params(module, "MaskedBlockAttentionParams");
  bind_head_rows(params, "q", &Params::q);
  bind_head_rows(params, "k", &Params::k);
  bind_head_rows(params, "v", &Params::v);
  bind_head_rows(params, "out", &Params::out);
  bind_head_rows(params, "lse", &Params::lse);
  bind_head_rows(params, "grad_out", &Params::grad_out);
  bind_head_rows(params, "grad_q", &Params::grad_q);
  bind_head_rows(params, "grad_k", &Params::grad_k);
  bind_head_rows(params, "grad_v", &Params::grad_v);
  params.field("anchors", &Params::anchors)
      .field("anchors_stride", &Params::anchors_stride)
      .field("cu_seqlens", &Params::cu_seqlens)
      .field("cu_seqlens_stride", &Params::cu_seqlens_stride)
      .field("documents", &Params::documents)
      .field("dtype", &Params::dtype)
      .field("mode", &Params::mode)
      .field("queries", &Params::queries)
      .field("keys", &Params::keys)
      .field("q_heads", &Params::q_heads)
      .field("kv_heads", &Params::kv_heads)
      .field("head_dim", &Params::head_dim)
      .field("block_size", &Params::block_size)
      .field("causal", &Params::causal)
      .field("window", &Params::window)
      .field("scale", &Params::scale);

  module.def(
      "plan_masked_block_attention_forward",
      [](const Params& op, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_masked_block_attention_forward(op, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def("masked_block_attention_forward_workspace_size", &cuda::masked_block_attention_forward_workspace_bytes,
             py::arg("params"));
  // What tests read of the tiles' launches: where their results lie in the workspace, for a pass' tile shape.
  module.def(
      "plan_mask_tiles",
      [](const Params& op, int64_t rows, int64_t keys, bool with_key_tiles, uintptr_t workspace) {
        cuda::MaskTiles tiles;
        std::vector<LaunchPlan> plans =
            cuda::plan_mask_tiles(op, {rows, keys, with_key_tiles}, pointer(workspace), &tiles);
        const auto address = [](const auto* part) { return reinterpret_cast<uintptr_t>(part); };
        py::dict places;
        places["order"] = address(tiles.order);
        places["query_keys"] = address(tiles.query_keys);
        places["row_tiles"] = address(tiles.row_tiles);
        places["row_schedule"] = address(tiles.row_schedule);
        places["key_tiles"] = address(tiles.key_tiles);
        places["key_schedule"] = address(tiles.key_schedule);
        return py::make_tuple(plans, places);
      },
      py::arg("params"), py::arg("rows"), py::arg("keys"), py::arg("with_key_tiles"), py::arg("workspace"));
  module.def(
      "mask_tiles_size",
      [](const Params& op, int64_t rows, int64_t keys, bool with_key_tiles) {
        return cuda::mask_tiles_bytes(op, {rows, keys, with_key_tiles});
      },
      py::arg("params"), py::arg("rows"), py::arg("keys"), py::arg("with_key_tiles"));
}

}  // namespace dflash::bindings
