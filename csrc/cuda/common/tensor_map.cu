#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "cuda/common/tensor_map.h"

namespace dflash::cuda {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;
constexpr int kRank = 3;

// Asked of the runtime, because this library also loads where there is no driver. Null for drivers before CUDA 12.
Encode find_encode() {
  constexpr unsigned int kFirstVersion = 12000;
  void* function = nullptr;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kFirstVersion, cudaEnableDefault, nullptr);
  if (error != cudaSuccess) {
    cudaGetLastError();  // leave no error behind for torch's own calls
    return nullptr;
  }
  return reinterpret_cast<Encode>(function);
}

template <typename Numbers>
std::string listed(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

CUresult encode_map(Encode encode, const TensorMapPlan& plan, CUtensorMap* map) {
  cuuint64_t sizes[kRank], strides[kRank - 1];
  cuuint32_t box[kRank], element_strides[kRank];
  for (int i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(plan.sizes[i]);
    box[i] = static_cast<cuuint32_t>(plan.box[i]);
    element_strides[i] = 1;
  }
  for (int i = 0; i < kRank - 1; ++i) strides[i] = static_cast<cuuint64_t>(plan.strides[i]);
  const CUtensorMapDataType type =
      plan.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(map, type, kRank, const_cast<void*>(plan.data), sizes, strides, box, element_strides,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace

std::string put_tensor_maps(const LaunchPlan& plan, int device, unsigned char* params) {
  // The driver's functions, unlike the runtime's, need the thread to have a context; one that autograd started may have
  // none before its first launch.
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(error);
  }
  static const Encode encode = find_encode();
  if (encode == nullptr) return "expected a driver of CUDA 12 or newer, got one without cuTensorMapEncodeTiled";
  for (const TensorMapPlan& map_plan : plan.tensor_maps) {
    CUtensorMap map;  // has the alignment that the driver asks for; the parameters' copy on the host has none
    static_assert(sizeof map == sizeof(TensorMap));
    const CUresult result = encode_map(encode, map_plan, &map);
    if (result != CUDA_SUCCESS) {
      return "the driver refused a tensor map with CUresult " + std::to_string(result) + ": sizes " +
             listed(map_plan.sizes) + ", strides of " + listed(map_plan.strides) + " bytes, box " +
             listed(map_plan.box) + " at address " + std::to_string(reinterpret_cast<uintptr_t>(map_plan.data));
    }
    std::memcpy(params + map_plan.params_offset, &map, sizeof map);
  }
  return "";
}

}  // namespace dflash::cuda
