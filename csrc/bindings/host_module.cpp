// dflash_ops._host: what the host side knows without torch (build facts; launch plans and workspace sizes join it
// here).
#include <pybind11/pybind11.h>

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
}
