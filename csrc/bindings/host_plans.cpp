#include "bindings/host_plans.h"

#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <type_traits>

#include "plan/cuda/begin_block.h"
#include "plan/cuda/commit_block.h"
#include "plan/cuda/row_argmax.h"
#include "plan/cuda/verify_greedy.h"
#include "plan/device.h"

namespace py = pybind11;

namespace dflash::bindings {
namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// A params struct as a Python class: keyword arguments set fields, pointers are integers.
template <typename Params>
class ParamsClass {
 public:
  ParamsClass(py::module_& module, const char* name) : type_(module, name) {
    type_.def(py::init([](const py::kwargs& fields) {
      auto params = std::make_unique<Params>();
      const py::object self = py::cast(params.get(), py::return_value_policy::reference);
      for (const auto& [field, value] : fields) py::setattr(self, field, value);
      return params;
    }));
  }

  template <typename Member>
  ParamsClass& field(const char* name, Member Params::* member) {
    if constexpr (std::is_pointer_v<Member>) {
      type_.def_property(
          name, [member](const Params& params) { return reinterpret_cast<uintptr_t>(params.*member); },
          [member](Params& params, uintptr_t address) { params.*member = reinterpret_cast<Member>(address); });
    } else {
      type_.def_readwrite(name, member);
    }
    return *this;
  }

 private:
  py::class_<Params> type_;
};

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

void bind_devices_and_launches(py::module_& module) {
  py::class_<DeviceProperties>(module, "DeviceProperties")
      .def_readonly("name", &DeviceProperties::name)
      .def_readonly("compute_capability", &DeviceProperties::compute_capability)
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
      .def_readonly("workspace_bytes", &LaunchPlan::workspace_bytes);

  py::enum_<DType>(module, "DType")
      .value("float32", DType::kFloat32)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16);
}

}  // namespace

void bind_cuda_plans(py::module_& module) {
  bind_devices_and_launches(module);
  bind_row_argmax(module);
  bind_verify_greedy(module);
  bind_begin_block(module);
  bind_commit_block(module);
}

}  // namespace dflash::bindings
