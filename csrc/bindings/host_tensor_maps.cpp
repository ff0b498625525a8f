#include <pybind11/stl.h>

#include "bindings/host_params.h"
#include "bindings/host_plans.h"
#include "params/masked_block_attention.h"
#include "plan/tensor_map.h"

namespace dflash::bindings {

void bind_tensor_maps(py::module_& module) {
  using Plan = TensorMapPlan;
  py::class_<Plan>(module, "TensorMapPlan")
      .def_readonly("params_offset", &Plan::params_offset)
      .def_readonly("dtype", &Plan::dtype)
      .def_property_readonly("data", [](const Plan& plan) { return reinterpret_cast<uintptr_t>(plan.data); })
      .def_readonly("sizes", &Plan::sizes)
      .def_readonly("strides", &Plan::strides)
      .def_readonly("box", &Plan::box);
  module.def(
      "head_rows_tensor_map",
      [](uintptr_t data, int64_t row_stride, int64_t head_stride, DType dtype, int64_t rows, int64_t heads,
         int64_t head_dim, int64_t box_rows, int64_t params_offset) {
        return head_rows_tensor_map({pointer(data), row_stride, head_stride}, dtype, rows, heads, head_dim, box_rows,
                                    params_offset);
      },
      py::arg("data"), py::arg("row_stride"), py::arg("head_stride"), py::arg("dtype"), py::arg("rows"),
      py::arg("heads"), py::arg("head_dim"), py::arg("box_rows"), py::arg("params_offset"));
}

}  // namespace dflash::bindings
