// Does this library carry code for a given GPU? Asked once, before the first launch, so that a missing architecture is
// a sentence instead of "no kernel image is available" in the middle of a run.
#include <cuda_runtime.h>

#include <cstdio>

extern "C" __global__ void dflash_image_probe(int* out) {
  if (out != nullptr) *out = 1;
}

// 0: code for the device is present. Otherwise a CUDA error code, with a readable sentence in `message`.
extern "C" __attribute__((visibility("default"))) int dflash_cuda_image_status(int device, char* message,
                                                                               int capacity) {
  int previous = 0;
  cudaError_t error = cudaGetDevice(&previous);
  if (error == cudaSuccess) error = cudaSetDevice(device);
  cudaDeviceProp properties{};
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) {
    cudaFuncAttributes attributes{};
    error = cudaFuncGetAttributes(&attributes, dflash_image_probe);
    cudaSetDevice(previous);
  }
  if (error == cudaSuccess) {
    std::snprintf(message, capacity, "ready for %s (sm_%d%d)", properties.name, properties.major, properties.minor);
  } else if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    std::snprintf(
        message, capacity,
        "this build has no code for %s (sm_%d%d); rebuild from source with DFLASH_OPS_CUDA_ARCHS including it",
        properties.name, properties.major, properties.minor);
  } else {
    std::snprintf(message, capacity, "no usable CUDA device: %s", cudaGetErrorString(error));
  }
  cudaGetLastError();  // leave no sticky error behind
  return static_cast<int>(error);
}
