#include "bindings/host_plans.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bindings/host_params.h"
#include "plan/cuda/begin_block.h"
#include "plan/cuda/commit_block.h"
#include "plan/cuda/norm_rope_qkv.h"
#include "plan/cuda/remask.h"
#include "plan/cuda/row_argmax.h"
#include "plan/cuda/update_page_bounds.h"
#include "plan/cuda/verify_greedy.h"
#include "plan/cuda/verify_sampled.h"
#include "plan/cuda/write_context_kv.h"
#include "plan/device.h"

namespace dflash::bindings {
namespace {

void bind_row_argmax(py::module_& module) {
  using Params = RowArgmaxParams;
  ParamsClass<Params>(module, "RowArgmaxParams")
      .field("logits", &Params::logits)
      .field("dtype", &Params::dtype)
      .field("rows", &Params::rows)
      .field("columns", &Params::columns)
      .field("row_stride", &Params::row_stride)
      .field("ids", &Params::ids)
      .field("ids_stride", &Params::ids_stride)
      .field("values", &Params::values)
      .field("values_stride", &Params::values_stride);
  module.def(
      "plan_row_argmax",
      [](const Params& params, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_row_argmax(params, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def("row_argmax_workspace_size", &cuda::argmax_rows_workspace_bytes, py::arg("rows"));
}

void bind_verify_greedy(py::module_& module) {
  using Params = VerifyParams;
  ParamsClass<Params>(module, "VerifyParams")
      .field("draft_tokens", &Params::draft_tokens)
      .field("draft_stride", &Params::draft_stride)
      .field("draft_lens", &Params::draft_lens)
      .field("draft_lens_stride", &Params::draft_lens_stride)
      .field("batch", &Params::batch)
      .field("drafts", &Params::drafts)
      .field("logits", &Params::logits)
      .field("dtype", &Params::dtype)
      .field("vocabulary", &Params::vocabulary)
      .field("logits_batch_stride", &Params::logits_batch_stride)
      .field("logits_row_stride", &Params::logits_row_stride)
      .field("target_ids", &Params::target_ids)
      .field("target_ids_stride", &Params::target_ids_stride)
      .field("accepted", &Params::accepted)
      .field("accepted_stride", &Params::accepted_stride)
      .field("tokens", &Params::tokens)
      .field("tokens_stride", &Params::tokens_stride)
      .field("next_token", &Params::next_token)
      .field("next_token_stride", &Params::next_token_stride);
  module.def(
      "plan_verify_greedy",
      [](const Params& params, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_verify_greedy(params, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def(
      "verify_greedy_workspace_size",
      [](int64_t batch, int64_t drafts) { return cuda::argmax_rows_workspace_bytes(batch * (drafts + 1)); },
      py::arg("batch"), py::arg("drafts"));
}

void bind_begin_block(py::module_& module) {
  using Params = BeginBlockParams;
  ParamsClass<Params>(module, "BeginBlockParams")
      .field("next_token", &Params::next_token)
      .field("next_token_stride", &Params::next_token_stride)
      .field("context_lens", &Params::context_lens)
      .field("context_lens_stride", &Params::context_lens_stride)
      .field("page_table", &Params::page_table)
      .field("page_table_stride", &Params::page_table_stride)
      .field("max_pages", &Params::max_pages)
      .field("page_size", &Params::page_size)
      .field("mask_token_id", &Params::mask_token_id)
      .field("finished", &Params::finished)
      .field("finished_stride", &Params::finished_stride)
      .field("batch", &Params::batch)
      .field("block", &Params::block)
      .field("input_ids", &Params::input_ids)
      .field("input_ids_stride", &Params::input_ids_stride)
      .field("positions", &Params::positions)
      .field("positions_stride", &Params::positions_stride)
      .field("slot_mapping", &Params::slot_mapping)
      .field("slot_mapping_stride", &Params::slot_mapping_stride);
  module.def("plan_begin_block", &cuda::plan_begin_block, py::arg("params"));
}

void bind_commit_block(py::module_& module) {
  using Params = CommitBlockParams;
  ParamsClass<Params>(module, "CommitBlockParams")
      .field("tokens", &Params::tokens)
      .field("tokens_stride", &Params::tokens_stride)
      .field("accepted", &Params::accepted)
      .field("accepted_stride", &Params::accepted_stride)
      .field("slot_mapping", &Params::slot_mapping)
      .field("slot_mapping_stride", &Params::slot_mapping_stride)
      .field("stop_token_ids", &Params::stop_token_ids)
      .field("stop_tokens", &Params::stop_tokens)
      .field("max_output_lens", &Params::max_output_lens)
      .field("max_output_lens_stride", &Params::max_output_lens_stride)
      .field("batch", &Params::batch)
      .field("block", &Params::block)
      .field("capacity", &Params::capacity)
      .field("context_lens", &Params::context_lens)
      .field("context_lens_stride", &Params::context_lens_stride)
      .field("next_token", &Params::next_token)
      .field("next_token_stride", &Params::next_token_stride)
      .field("output_ids", &Params::output_ids)
      .field("output_ids_stride", &Params::output_ids_stride)
      .field("output_lens", &Params::output_lens)
      .field("output_lens_stride", &Params::output_lens_stride)
      .field("finished", &Params::finished)
      .field("finished_stride", &Params::finished_stride)
      .field("committed", &Params::committed)
      .field("committed_stride", &Params::committed_stride)
      .field("context_slots", &Params::context_slots)
      .field("context_slots_stride", &Params::context_slots_stride);
  module.def("plan_commit_block", &cuda::plan_commit_block, py::arg("params"));
}

void bind_verify_sampled(py::module_& module) {
  using Params = SamplingParams;
  ParamsClass<Params>(module, "SamplingParams")
      .field("temperature", &Params::temperature)
      .field("temperature_stride", &Params::temperature_stride)
      .field("top_k", &Params::top_k)
      .field("top_k_stride", &Params::top_k_stride)
      .field("top_p", &Params::top_p)
      .field("top_p_stride", &Params::top_p_stride)
      .field("seed", &Params::seed)
      .field("seed_stride", &Params::seed_stride)
      .field("offset", &Params::offset)
      .field("offset_stride", &Params::offset_stride);
  module.def(
      "plan_verify_sampled",
      [](const VerifyParams& params, const Params& sampling, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_verify_sampled(params, sampling, pointer(workspace), device);
      },
      py::arg("params"), py::arg("sampling"), py::arg("workspace"), py::arg("device"));
  module.def("verify_sampled_workspace_size", &cuda::verify_sampled_workspace_bytes, py::arg("batch"),
             py::arg("drafts"), py::arg("vocabulary"));
}

void bind_remask(py::module_& module) {
  using Params = RemaskParams;
  ParamsClass<Params>(module, "RemaskParams")
      .field("logits", &Params::logits)
      .field("dtype", &Params::dtype)
      .field("batch", &Params::batch)
      .field("positions", &Params::positions)
      .field("vocabulary", &Params::vocabulary)
      .field("logits_batch_stride", &Params::logits_batch_stride)
      .field("logits_row_stride", &Params::logits_row_stride)
      .field("tokens", &Params::tokens)
      .field("tokens_stride", &Params::tokens_stride)
      .field("mask_token_id", &Params::mask_token_id)
      .field("keep", &Params::keep)
      .field("keep_stride", &Params::keep_stride)
      .field("confidence", &Params::confidence)
      .field("confidence_stride", &Params::confidence_stride);
  module.def(
      "plan_remask",
      [](const Params& params, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_remask(params, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def("remask_workspace_size", &cuda::remask_workspace_bytes, py::arg("batch"), py::arg("positions"));
}

void bind_rope_table(py::module_& module) {
  ParamsClass<RopeTable>(module, "RopeTable")
      .field("cos_sin", &RopeTable::cos_sin)
      .field("dtype", &RopeTable::dtype)
      .field("table_rows", &RopeTable::table_rows)
      .field("row_stride", &RopeTable::row_stride)
      .field("rotary_dim", &RopeTable::rotary_dim)
      .field("interleaved", &RopeTable::interleaved)
      .field("positions", &RopeTable::positions)
      .field("positions_stride", &RopeTable::positions_stride);
}

void bind_norm_rope_qkv(py::module_& module) {
  using Params = NormRopeQkvParams;
  ParamsClass<Params>(module, "NormRopeQkvParams")
      .field("qkv", &Params::qkv)
      .field("qkv_row_stride", &Params::qkv_row_stride)
      .field("dtype", &Params::dtype)
      .field("rows", &Params::rows)
      .field("q_heads", &Params::q_heads)
      .field("kv_heads", &Params::kv_heads)
      .field("head_dim", &Params::head_dim)
      .field("q_norm_weight", &Params::q_norm_weight)
      .field("k_norm_weight", &Params::k_norm_weight)
      .field("rope", &Params::rope)
      .field("eps", &Params::eps)
      .field("q", &Params::q)
      .field("q_row_stride", &Params::q_row_stride)
      .field("q_head_stride", &Params::q_head_stride)
      .field("k", &Params::k)
      .field("k_row_stride", &Params::k_row_stride)
      .field("k_head_stride", &Params::k_head_stride)
      .field("v", &Params::v)
      .field("v_row_stride", &Params::v_row_stride)
      .field("v_head_stride", &Params::v_head_stride);
  module.def("plan_norm_rope_qkv", &cuda::plan_norm_rope_qkv, py::arg("params"), py::arg("device"));
}

template <typename Params, typename Layer>
std::vector<Layer> layers_of(const Params& params) {
  return std::vector<Layer>(params.layers, params.layers + params.layer_count);
}

template <typename Params, typename Layer>
void set_layers(Params& params, const std::vector<Layer>& layers) {
  if (layers.size() > static_cast<size_t>(kMaxContextLayers)) throw std::invalid_argument("layers: too many");
  std::copy(layers.begin(), layers.end(), params.layers);
  params.layer_count = static_cast<int64_t>(layers.size());
}

void bind_write_context_kv(py::module_& module) {
  using Layer = ContextCacheLayer;
  using Caches = ContextCaches;
  using Params = WriteContextKvParams;
  ParamsClass<Layer>(module, "ContextCacheLayer")
      .field("k", &Layer::k)
      .field("k_page_stride", &Layer::k_page_stride)
      .field("k_slot_stride", &Layer::k_slot_stride)
      .field("k_head_stride", &Layer::k_head_stride)
      .field("v", &Layer::v)
      .field("v_page_stride", &Layer::v_page_stride)
      .field("v_slot_stride", &Layer::v_slot_stride)
      .field("v_head_stride", &Layer::v_head_stride);
  ParamsClass<Caches>(module, "ContextCaches")
      .field("dtype", &Caches::dtype)
      .field("pages", &Caches::pages)
      .field("page_size", &Caches::page_size)
      .field("kv_heads", &Caches::kv_heads)
      .field("head_dim", &Caches::head_dim)
      .field("slot_mapping", &Caches::slot_mapping)
      .field("slot_mapping_stride", &Caches::slot_mapping_stride)
      .property("layers", layers_of<Caches, Layer>, set_layers<Caches, Layer>);
  ParamsClass<Params>(module, "WriteContextKvParams")
      .field("kv", &Params::kv)
      .field("dtype", &Params::dtype)
      .field("row_stride", &Params::row_stride)
      .field("layer_stride", &Params::layer_stride)
      .field("part_stride", &Params::part_stride)
      .field("head_stride", &Params::head_stride)
      .field("rows", &Params::rows)
      .field("row_count", &Params::row_count)
      .field("k_norm_weight", &Params::k_norm_weight)
      .field("weight_dtype", &Params::weight_dtype)
      .field("k_norm_layer_stride", &Params::k_norm_layer_stride)
      .field("rope", &Params::rope)
      .field("caches", &Params::caches)
      .field("eps", &Params::eps);
  module.def("plan_write_context_kv", &cuda::plan_write_context_kv, py::arg("params"), py::arg("device"));
}

void bind_update_page_bounds(py::module_& module) {
  using Layer = PageBoundsLayer;
  using Params = UpdatePageBoundsParams;
  ParamsClass<Layer>(module, "PageBoundsLayer")
      .field("k", &Layer::k)
      .field("k_page_stride", &Layer::k_page_stride)
      .field("k_slot_stride", &Layer::k_slot_stride)
      .field("k_head_stride", &Layer::k_head_stride)
      .field("bounds", &Layer::bounds)
      .field("bounds_page_stride", &Layer::bounds_page_stride)
      .field("bounds_head_stride", &Layer::bounds_head_stride)
      .field("bounds_part_stride", &Layer::bounds_part_stride);
  ParamsClass<Params>(module, "UpdatePageBoundsParams")
      .field("dtype", &Params::dtype)
      .field("pages", &Params::pages)
      .field("page_size", &Params::page_size)
      .field("kv_heads", &Params::kv_heads)
      .field("head_dim", &Params::head_dim)
      .field("slot_mapping", &Params::slot_mapping)
      .field("slot_mapping_stride", &Params::slot_mapping_stride)
      .field("rows", &Params::rows)
      .field("row_count", &Params::row_count)
      .property("layers", layers_of<Params, Layer>, set_layers<Params, Layer>);
  module.def("plan_update_page_bounds", &cuda::plan_update_page_bounds, py::arg("params"), py::arg("device"));
}

void bind_devices_and_launches(py::module_& module) {
  py::class_<DeviceProperties>(module, "DeviceProperties")
      .def_readonly("name", &DeviceProperties::name)
      .def_readonly("compute_capability", &DeviceProperties::compute_capability)
      .def_readonly("warpgroup_kernels", &DeviceProperties::warpgroup_kernels)
      .def_readonly("multiprocessors", &DeviceProperties::multiprocessors)
      .def_readonly("shared_bytes_per_block", &DeviceProperties::shared_bytes_per_block)
      .def_readonly("shared_bytes_per_multiprocessor", &DeviceProperties::shared_bytes_per_multiprocessor)
      .def_readonly("registers_per_multiprocessor", &DeviceProperties::registers_per_multiprocessor)
      .def_readonly("threads_per_multiprocessor", &DeviceProperties::threads_per_multiprocessor)
      .def_readonly("blocks_per_multiprocessor", &DeviceProperties::blocks_per_multiprocessor)
      .def_readonly("l2_bytes", &DeviceProperties::l2_bytes)
      .def_readonly("memory_bandwidth", &DeviceProperties::memory_bandwidth)
      .def_readonly("clock", &DeviceProperties::clock);
  module.def("known_devices", &known_devices);
  module.def("known_device", &known_device, py::arg("name"));

  const auto tuple = [](const Dim3& size) { return std::make_tuple(size.x, size.y, size.z); };
  py::class_<LaunchPlan>(module, "LaunchPlan")
      .def_property_readonly("entry", [](const LaunchPlan& plan) { return std::string(plan.entry); })
      .def_property_readonly("grid", [tuple](const LaunchPlan& plan) { return tuple(plan.grid); })
      .def_property_readonly("block", [tuple](const LaunchPlan& plan) { return tuple(plan.block); })
      .def_readonly("shared_bytes", &LaunchPlan::shared_bytes)
      .def_property_readonly("params",
                             [](const LaunchPlan& plan) {
                               return py::bytes(reinterpret_cast<const char*>(plan.params.data()), plan.params.size());
                             })
      .def_readonly("workspace_bytes", &LaunchPlan::workspace_bytes)
      .def_readonly("bytes_in_flight", &LaunchPlan::bytes_in_flight)
      .def_readonly("overlaps", &LaunchPlan::overlaps)
      .def_readonly("tensor_maps", &LaunchPlan::tensor_maps);

  py::enum_<DType>(module, "DType")
      .value("float32", DType::kFloat32)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16);
}

}  // namespace

void bind_cuda_plans(py::module_& module) {
  bind_devices_and_launches(module);
  bind_tensor_maps(module);
  bind_row_argmax(module);
  bind_verify_greedy(module);
  bind_begin_block(module);
  bind_commit_block(module);
  bind_verify_sampled(module);
  bind_remask(module);
  bind_rope_table(module);
  bind_norm_rope_qkv(module);
  bind_write_context_kv(module);
  bind_block_attention(module);
  bind_masked_block_attention(module);
  bind_masked_block_attention_backward(module);
  bind_select_pages(module);
  bind_stream_plans(module);
  bind_update_page_bounds(module);
}

}  // namespace dflash::bindings
