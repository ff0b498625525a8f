// Plans of the ops that stream a weight: lm_head_argmax, fuse_features, project_context_kv.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/host_params.h"
#include "bindings/host_plans.h"
#include "plan/cuda/fuse_features.h"
#include "plan/cuda/lm_head_argmax.h"
#include "plan/cuda/project_context_kv.h"

namespace dflash::bindings {
namespace {

void bind_gemm(py::module_& module) {
  using Activations = GemmActivations;
  using Piece = std::pair<uintptr_t, int64_t>;  // address, row stride
  ParamsClass<Activations>(module, "GemmActivations")
      .field("piece_columns", &Activations::piece_columns)
      .field("rows", &Activations::rows)
      .property(
          "pieces",
          [](const Activations& activations) {
            std::vector<Piece> pieces;
            for (int64_t i = 0; i < activations.piece_count; ++i) {
              pieces.emplace_back(reinterpret_cast<uintptr_t>(activations.pieces[i]), activations.row_strides[i]);
            }
            return pieces;
          },
          [](Activations& activations, const std::vector<Piece>& pieces) {
            if (pieces.size() > static_cast<size_t>(kMaxGemmPieces)) throw std::invalid_argument("pieces: too many");
            activations.piece_count = static_cast<int64_t>(pieces.size());
            for (size_t i = 0; i < pieces.size(); ++i) {
              activations.pieces[i] = pointer(pieces[i].first);
              activations.row_strides[i] = pieces[i].second;
            }
          });
  ParamsClass<GemmWeight>(module, "GemmWeight")
      .field("data", &GemmWeight::data)
      .field("layer_stride", &GemmWeight::layer_stride)
      .field("row_stride", &GemmWeight::row_stride)
      .field("bias", &GemmWeight::bias)
      .field("bias_layer_stride", &GemmWeight::bias_layer_stride)
      .field("layer_columns", &GemmWeight::layer_columns)
      .field("columns", &GemmWeight::columns);
  ParamsClass<SkinnyGemm>(module, "SkinnyGemm")
      .field("activations", &SkinnyGemm::activations)
      .field("weight", &SkinnyGemm::weight)
      .field("dtype", &SkinnyGemm::dtype);
}

void bind_steps(py::module_& module) {
  using Product = cuda::LibraryProduct;
  const auto address = [](const void* Product::* member) {
    return [member](const Product& product) { return reinterpret_cast<uintptr_t>(product.*member); };
  };
  py::class_<Product>(module, "LibraryProduct")
      .def_property_readonly("activations", address(&Product::activations))
      .def_property_readonly("weight", address(&Product::weight))
      .def_property_readonly("out", [](const Product& product) { return reinterpret_cast<uintptr_t>(product.out); })
      .def_readonly("rows", &Product::rows)
      .def_readonly("columns", &Product::columns)
      .def_readonly("inner", &Product::inner)
      .def_readonly("activations_stride", &Product::activations_stride)
      .def_readonly("weight_stride", &Product::weight_stride)
      .def_readonly("out_stride", &Product::out_stride)
      .def_readonly("dtype", &Product::dtype);
  py::class_<cuda::OpStep>(module, "OpStep")
      .def_readonly("products", &cuda::OpStep::products)
      .def_readonly("launch", &cuda::OpStep::launch);
}

void bind_lm_head_argmax(py::module_& module) {
  using Params = LmHeadArgmaxParams;
  ParamsClass<Params>(module, "LmHeadArgmaxParams")
      .field("gemm", &Params::gemm)
      .field("vocab_offset", &Params::vocab_offset)
      .field("softcap", &Params::softcap)
      .field("ids", &Params::ids)
      .field("ids_stride", &Params::ids_stride)
      .field("values", &Params::values)
      .field("values_stride", &Params::values_stride)
      .field("workspace", &Params::workspace);
  module.def("plan_lm_head_argmax", &cuda::plan_lm_head_argmax, py::arg("params"), py::arg("device"));
  module.def("lm_head_argmax_cuda_workspace_size", &cuda::lm_head_argmax_workspace_bytes, py::arg("rows"),
             py::arg("hidden_size"), py::arg("vocab_size"));
}

void bind_fuse_features(py::module_& module) {
  using Params = FuseFeaturesParams;
  ParamsClass<Params>(module, "FuseFeaturesParams")
      .field("gemm", &Params::gemm)
      .field("row_count", &Params::row_count)
      .field("norm_weight", &Params::norm_weight)
      .field("eps", &Params::eps)
      .field("out", &Params::out)
      .field("out_row_stride", &Params::out_row_stride)
      .field("workspace", &Params::workspace);
  module.def("plan_fuse_features", &cuda::plan_fuse_features, py::arg("params"), py::arg("device"));
  module.def("fuse_features_cuda_workspace_size", &cuda::fuse_features_workspace_bytes, py::arg("rows"),
             py::arg("taps"), py::arg("tap_columns"), py::arg("columns"));
}

void bind_project_context_kv(py::module_& module) {
  using Params = ProjectContextKvParams;
  ParamsClass<Params>(module, "ProjectContextKvParams")
      .field("gemm", &Params::gemm)
      .field("write", &Params::write)
      .field("workspace", &Params::workspace);
  module.def("plan_project_context_kv", &cuda::plan_project_context_kv, py::arg("params"), py::arg("device"));
  module.def("project_context_kv_cuda_workspace_size", &cuda::project_context_kv_workspace_bytes, py::arg("rows"),
             py::arg("hidden_size"), py::arg("columns"));
}

}  // namespace

void bind_stream_plans(py::module_& module) {
  bind_gemm(module);
  bind_steps(module);
  bind_lm_head_argmax(module);
  bind_fuse_features(module);
  bind_project_context_kv(module);
}

}  // namespace dflash::bindings
