#include "bindings/cuda_backend.h"

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <stdexcept>

#include "cuda/common/backend.h"
#include "plan/cuda/workspace.h"

namespace dflash::bindings {
namespace {

struct CudaLibrary {
  DflashCudaDevice* device = nullptr;
  DflashCudaLaunch* launch = nullptr;
  std::string ops;  // comma-separated; empty where there is no library
};

CudaLibrary open_library() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&open_library), &self) == 0) return {};
  const std::string path = self.dli_fname;
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  void* library = dlopen((folder + "_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  auto* ops = reinterpret_cast<DflashCudaOps*>(dlsym(library, "dflash_cuda_ops"));
  CudaLibrary found{reinterpret_cast<DflashCudaDevice*>(dlsym(library, "dflash_cuda_device")),
                    reinterpret_cast<DflashCudaLaunch*>(dlsym(library, "dflash_cuda_launch")),
                    ops == nullptr ? "" : ops()};
  return found.device == nullptr || found.launch == nullptr ? CudaLibrary{} : found;
}

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = open_library();
  return library;
}

bool has_kernel(const std::string& op) {
  return ("," + cuda_library().ops + ",").find("," + op + ",") != std::string::npos;
}

[[noreturn]] void raise_sentence(const char* op, const char* sentence) {
  throw std::runtime_error(std::string(op) + ": " + sentence);
}

}  // namespace

std::string cuda_ops() { return cuda_library().ops; }

const DeviceProperties& cuda_device(const char* op, const Tensor& tensor) {
  if (!has_kernel(op)) raise_no_cuda_kernel(op);
  if (!tensor.is_cuda()) raise(op, "device", "tensors on a GPU", to_string(tensor));
  const DeviceProperties* properties = nullptr;
  const char* message = cuda_library().device(static_cast<int>(tensor.get_device_index()), &properties);
  if (message != nullptr) raise_sentence(op, message);
  return *properties;
}

void* checked_arrivals(const char* op, const OptionalTensor& workspace, const Tensor& tensor, int64_t requests,
                       int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (requests > cuda::kMostCounters) {
    raise(op, "batch", "at most " + std::to_string(cuda::kMostCounters) + " requests on CUDA",
          std::to_string(requests));
  }
  if (!workspace)
    raise(op, "workspace", "a zeroed uint8 tensor of at least " + std::to_string(bytes) + " bytes", "none");
  TensorCheck(op, "workspace", *workspace).same_device(tensor).workspace(bytes);
  return workspace->data_ptr();
}

void cuda_launch(const char* op, const Tensor& tensor, const LaunchPlan& plan) {
  const char* message = cuda_library().launch(&plan, static_cast<int>(tensor.get_device_index()));
  if (message != nullptr) raise_sentence(op, message);
}

}  // namespace dflash::bindings

STABLE_TORCH_LIBRARY_FRAGMENT(dflash_ops, m) { m.def("cuda_ops() -> str"); }
STABLE_TORCH_LIBRARY_IMPL(dflash_ops, CompositeExplicitAutograd, m) {
  m.impl("cuda_ops", TORCH_BOX(&dflash::bindings::cuda_ops));
}
