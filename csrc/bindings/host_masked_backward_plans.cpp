#include <pybind11/stl.h>

#include "bindings/host_params.h"
#include "bindings/host_plans.h"
#include "plan/cuda/masked_block_attention_backward.h"

namespace py = pybind11;

namespace dflash::bindings {

void bind_masked_block_attention_backward(py::module_& module) {
  using Params = MaskedBlockAttentionParams;
  module.def(
      "plan_masked_block_attention_backward",
      [](const Params& op, uintptr_t workspace, const DeviceProperties& device) {
        return cuda::plan_masked_block_attention_backward(op, pointer(workspace), device);
      },
      py::arg("params"), py::arg("workspace"), py::arg("device"));
  module.def("masked_block_attention_backward_workspace_size", &cuda::masked_block_attention_backward_workspace_bytes,
             py::arg("params"), py::arg("device"));
}

}  // namespace dflash::bindings
