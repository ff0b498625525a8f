// csrc/cuda/common/tensor_map.cu with stand-ins for the runtime and the driver, for test_tensor_map.py. The driver's
// makes the 128 bytes as tests/ptxsim/tensor_map.py does, and puts what that has no place for into the last ones.
#include "cuda/common/tensor_map.cu"

#include <algorithm>

namespace {

int current_device = -1;
bool has_function = true;
CUresult answer = CUDA_SUCCESS;

struct StandInMap {
  uint32_t magic = 0x50414d54;
  uint8_t type, rank, swizzle, fill_nan;
  uint64_t address, sizes[5] = {1, 1, 1, 1, 1}, strides[4] = {};
  uint16_t box[5] = {1, 1, 1, 1, 1};
  uint8_t element_strides[5] = {1, 1, 1, 1, 1};
  uint8_t unused[23] = {};
  uint8_t interleave, l2_promotion;
};
static_assert(sizeof(StandInMap) == sizeof(CUtensorMap));

CUresult encode_stand_in(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                         const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                         const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2_promotion,
                         CUtensorMapFloatOOBfill fill) {
  if (current_device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
  StandInMap made;
  made.type = static_cast<uint8_t>(type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ? 6 : 9);
  made.rank = static_cast<uint8_t>(rank);
  made.swizzle = static_cast<uint8_t>(swizzle);
  made.fill_nan = static_cast<uint8_t>(fill);
  made.address = reinterpret_cast<uintptr_t>(address);
  std::copy(sizes, sizes + rank, made.sizes);
  std::copy(strides, strides + rank - 1, made.strides);
  std::copy(box, box + rank, made.box);
  std::copy(element_strides, element_strides + rank, made.element_strides);
  made.interleave = static_cast<uint8_t>(interleave);
  made.l2_promotion = static_cast<uint8_t>(l2_promotion);
  std::memcpy(map, &made, sizeof made);
  return answer;
}

}  // namespace

extern "C" {

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return device < 8 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t) { return "invalid device ordinal"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
  const bool found = has_function && std::string(symbol) == "cuTensorMapEncodeTiled" && version == 12000;
  *function = found ? reinterpret_cast<void*>(&encode_stand_in) : nullptr;
  return cudaSuccess;
}

__attribute__((visibility("default"))) void set_driver(bool has, int result) {
  has_function = has;
  answer = static_cast<CUresult>(result);
}

// `numbers`: of one map its offset, dtype, address, sizes, strides and box.
__attribute__((visibility("default"))) const char* put(int count, const int64_t (*numbers)[11], int device,
                                                       unsigned char* params) {
  static std::string message;
  dflash::LaunchPlan plan{};
  for (int i = 0; i < count; ++i) {
    const int64_t* n = numbers[i];
    plan.tensor_maps.push_back({n[0],
                                static_cast<dflash::DType>(n[1]),
                                reinterpret_cast<const void*>(n[2]),
                                {n[3], n[4], n[5]},
                                {n[6], n[7]},
                                {n[8], n[9], n[10]}});
  }
  message = dflash::cuda::put_tensor_maps(plan, device, params);
  return message.c_str();
}
}
