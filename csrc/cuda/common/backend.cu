// The one place that launches kernels: finds the entry by name, checks its parameter's size, asks torch for the stream.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/common/backend.h"
#include "cuda/common/entries.h"
#include "cuda/common/tensor_map.h"

namespace dflash::cuda {
namespace {

std::unordered_map<std::string, Entry>& entries_by_name() {
  static std::unordered_map<std::string, Entry> entries;
  return entries;
}

std::string& op_names() {
  static std::string names;
  return names;
}

// Whether the build had sm_90a among its architectures.
bool has_warpgroup_kernels() {
  for (const auto& [name, entry] : entries_by_name()) {
    if (name.find("_sm90a_") != std::string::npos) return true;
  }
  return false;
}

const char* failure(const std::string& sentence) {
  static thread_local std::string kept;
  kept = sentence;
  return kept.c_str();
}

// Makes `device` current for one call.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device_) error_ = cudaSetDevice(device_);
  }
  ~DeviceGuard() {
    if (error_ == cudaSuccess && previous_ != device_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int device_, previous_ = 0;
  cudaError_t error_;
};

// torch's current stream, through its stable C interface. Looked up at run time, so that this library also loads beside
// a CPU build of torch.
const char* current_stream(int device, cudaStream_t* stream) {
  using GetStream = int32_t (*)(int32_t, void**);
  static const GetStream get_stream = [] {
    void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol = torch_cuda == nullptr ? nullptr : dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream");
    return reinterpret_cast<GetStream>(symbol);
  }();
  if (get_stream == nullptr) return "expected a CUDA build of torch, got one without libtorch_cuda.so";
  void* current = nullptr;
  if (get_stream(device, &current) != 0) return "torch gave no current stream";
  *stream = static_cast<cudaStream_t>(current);
  return nullptr;
}

cudaError_t read_properties(int device, DeviceProperties* properties) {
  cudaDeviceProp runtime{};
  cudaError_t error = cudaGetDeviceProperties(&runtime, device);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  properties->name = runtime.name;
  properties->compute_capability = 10 * runtime.major + runtime.minor;
  properties->warpgroup_kernels = properties->compute_capability == 90 && has_warpgroup_kernels();
  properties->multiprocessors = runtime.multiProcessorCount;
  properties->shared_bytes_per_block = static_cast<int64_t>(runtime.sharedMemPerBlockOptin);
  properties->shared_bytes_per_multiprocessor = static_cast<int64_t>(runtime.sharedMemPerMultiprocessor);
  properties->registers_per_multiprocessor = runtime.regsPerMultiprocessor;
  properties->threads_per_multiprocessor = runtime.maxThreadsPerMultiProcessor;
  properties->blocks_per_multiprocessor = runtime.maxBlocksPerMultiProcessor;
  properties->l2_bytes = runtime.l2CacheSize;
  const double memory_clock = 1e3 * attribute(cudaDevAttrMemoryClockRate);  // kHz; two transfers each
  properties->memory_bandwidth = 2 * memory_clock * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  properties->clock = 1e3 * attribute(cudaDevAttrClockRate);
  return error;
}

const char* device_properties(int device, const DeviceProperties** properties) {
  static std::mutex mutex;
  static std::unordered_map<int, DeviceProperties> cached;  // references into it stay valid
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = cached.find(device);
  if (found == cached.end()) {
    DeviceProperties read;
    const cudaError_t error = read_properties(device, &read);
    if (error != cudaSuccess) {
      cudaGetLastError();  // leave no error behind for torch's own calls
      return failure(std::string("no usable CUDA device: ") + cudaGetErrorString(error));
    }
    found = cached.emplace(device, read).first;
  }
  *properties = &found->second;
  return nullptr;
}

// Whether the code that runs on the current device, `device`, contains the wait that LaunchPlan::overlaps promises.
// What was compiled for sm_80 does not, even where the driver has translated it for a newer GPU. All kernels of this
// library are compiled for the same architectures, so one answers for all.
bool code_waits(const void* kernel, int device) {
  constexpr int kFirstVersion = 90;
  static std::mutex mutex;
  static std::unordered_map<int, bool> cached;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = cached.find(device);
  if (found != cached.end()) return found->second;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return false;
  return cached[device] = attributes.ptxVersion >= kFirstVersion;
}

const char* launch(const LaunchPlan& plan, int device) {
  const std::string kernel = plan.entry;
  const auto found = entries_by_name().find(kernel);
  if (found == entries_by_name().end()) return failure("no kernel " + kernel + " in the CUDA library");
  const Entry& entry = found->second;
  if (entry.params_bytes != static_cast<int64_t>(plan.params.size())) {
    return failure("kernel " + kernel + ": expected " + std::to_string(entry.params_bytes) + " parameter bytes, got " +
                   std::to_string(plan.params.size()));
  }
  if (plan.grid.x == 0) return nullptr;
  if (plan.grid.x > INT32_MAX || plan.grid.y > UINT16_MAX || plan.grid.z > UINT16_MAX) {
    return failure("kernel " + kernel + ": the grid is larger than CUDA allows");
  }

  const DeviceGuard guard(device);
  cudaError_t error = guard.error();
  cudaStream_t stream = nullptr;
  if (error == cudaSuccess) {
    if (const char* message = current_stream(device, &stream)) return message;
  }
  std::vector<unsigned char> params = plan.params;
  if (error == cudaSuccess && !plan.tensor_maps.empty()) {
    const std::string message = put_tensor_maps(plan, device, params.data());
    if (!message.empty()) return failure("kernel " + kernel + ": " + message);
  }
  constexpr int64_t kSharedWithoutOptIn = 48 * 1024;
  if (error == cudaSuccess && plan.shared_bytes > kSharedWithoutOptIn) {
    error = cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(plan.shared_bytes));
  }
  if (error == cudaSuccess) {
    const auto dimensions = [](const Dim3& size) {
      return dim3(static_cast<unsigned>(size.x), static_cast<unsigned>(size.y), static_cast<unsigned>(size.z));
    };
    void* arguments[] = {params.data()};  // copied from there to constant memory, where they get their alignment
    cudaLaunchAttribute overlaps{};
    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dimensions(plan.grid);
    config.blockDim = dimensions(plan.block);
    config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
    config.stream = stream;
    config.attrs = &overlaps;
    config.numAttrs = plan.overlaps && code_waits(entry.kernel, device) ? 1 : 0;
    error = cudaLaunchKernelExC(&config, entry.kernel, arguments);
  }
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return failure("kernel " + kernel + ": " + cudaGetErrorString(error));
}

}  // namespace

EntryTable::EntryTable(const char* op, std::initializer_list<Entry> entries) {
  if (*op != '\0') op_names() += (op_names().empty() ? "" : ",") + std::string(op);
  for (const Entry& entry : entries) entries_by_name().emplace(entry.name, entry);
}

}  // namespace dflash::cuda

extern "C" {

__attribute__((visibility("default"))) const char* dflash_cuda_device(int device,
                                                                      const dflash::DeviceProperties** properties) {
  return dflash::cuda::device_properties(device, properties);
}

__attribute__((visibility("default"))) const char* dflash_cuda_launch(const dflash::LaunchPlan* plan, int device) {
  return dflash::cuda::launch(*plan, device);
}

__attribute__((visibility("default"))) const char* dflash_cuda_ops() { return dflash::cuda::op_names().c_str(); }
}
