// What a launch plan knows of a GPU. Free of the CUDA runtime, so that plans can be made and tested without one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace dflash {

struct DeviceProperties {
  std::string name;
  int64_t compute_capability;      // 10 * major + minor
  bool warpgroup_kernels;          // the kernels of csrc/cuda/*_sm90a were built and run here
  int64_t multiprocessors;         // SMs
  int64_t shared_bytes_per_block;  // opt-in limit
  int64_t shared_bytes_per_multiprocessor;
  int64_t registers_per_multiprocessor;
  int64_t threads_per_multiprocessor;
  int64_t blocks_per_multiprocessor;
  int64_t l2_bytes;
  double memory_bandwidth;  // bytes per second, peak
  double clock;             // Hz, boost
};

// The GPUs that plans are tested for. Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability"; counts, bandwidths and clocks: NVIDIA's data sheets.
const std::vector<DeviceProperties>& known_devices();

// One of known_devices() by name; throws std::invalid_argument naming those there are.
const DeviceProperties& known_device(const std::string& name);

}  // namespace dflash
