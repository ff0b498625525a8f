#include "plan/device.h"

#include <stdexcept>

namespace dflash {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Limits of one compute capability; a block may ask for all shared memory of an SM but the 1 KiB the system keeps.
struct Limits {
  int64_t compute_capability, shared_kib, threads, blocks;
};
constexpr Limits kAmpere{80, 164, 2048, 32};
constexpr Limits kAmpereConsumer{86, 100, 1536, 16};
constexpr Limits kAda{89, 100, 1536, 24};
constexpr Limits kHopper{90, 228, 2048, 32};
constexpr Limits kBlackwell{100, 228, 2048, 32};
constexpr Limits kBlackwellConsumer{120, 100, 1536, 24};

DeviceProperties device(const char* name, const Limits& limits, int64_t multiprocessors, int64_t l2_mib,
                        double gigabytes_per_second, double megahertz) {
  DeviceProperties properties;
  properties.name = name;
  properties.compute_capability = limits.compute_capability;
  properties.warpgroup_kernels = limits.compute_capability == 90;
  properties.multiprocessors = multiprocessors;
  properties.shared_bytes_per_block = (limits.shared_kib - 1) * kKiB;
  properties.shared_bytes_per_multiprocessor = limits.shared_kib * kKiB;
  properties.registers_per_multiprocessor = 64 * kKiB;
  properties.threads_per_multiprocessor = limits.threads;
  properties.blocks_per_multiprocessor = limits.blocks;
  properties.l2_bytes = l2_mib * kMiB;
  properties.memory_bandwidth = gigabytes_per_second * 1e9;
  properties.clock = megahertz * 1e6;
  return properties;
}

}  // namespace

const std::vector<DeviceProperties>& known_devices() {
  static const std::vector<DeviceProperties> devices = {device("A100", kAmpere, 108, 40, 2039, 1410),  // SXM4, 80 GB
                                                        device("RTX 3090", kAmpereConsumer, 82, 6, 936, 1695),
                                                        device("RTX 4090", kAda, 128, 72, 1008, 2520),
                                                        device("H100", kHopper, 132, 50, 3352, 1980),  // SXM5
                                                        device("H200", kHopper, 132, 50, 4800, 1980),  // SXM5
                                                        device("B200", kBlackwell, 148, 126, 8000, 1965),
                                                        device("RTX 5090", kBlackwellConsumer, 170, 96, 1792, 2407)};
  return devices;
}

const DeviceProperties& known_device(const std::string& name) {
  std::string names;
  for (const DeviceProperties& properties : known_devices()) {
    if (properties.name == name) return properties;
    names += (names.empty() ? "" : ", ") + properties.name;
  }
  throw std::invalid_argument("device: expected one of " + names + ", got " + name);
}

}  // namespace dflash
