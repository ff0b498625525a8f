// How one kernel is launched: made by csrc/plan/cuda/<op>.cpp without the CUDA runtime, carried out by `launch` of
// csrc/cuda/common/backend.cu, by the PTX interpreter in tests.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "plan/tensor_map.h"

namespace dflash {

struct Dim3 {
  int64_t x = 1, y = 1, z = 1;
};

struct LaunchPlan {
  const char* entry;  // name of the `extern "C"` kernel
  Dim3 grid;          // x = 0: there is nothing to do
  Dim3 block;
  int64_t shared_bytes;               // dynamic
  std::vector<unsigned char> params;  // the kernel's one parameter, a struct passed by value
  int64_t workspace_bytes;            // what this launch uses of its workspace
  int64_t bytes_in_flight = 0;        // that a block's asynchronous copies keep under way
  // The kernel itself waits for the launches before it (cuda/common/ptx.cuh), so that it may start while they end.
  bool overlaps = false;
  // To put into the parameters, where TensorMap fields lie; their bytes in `params` mean nothing.
  std::vector<TensorMapPlan> tensor_maps = {};
};

template <typename Params>
LaunchPlan make_launch(const char* entry, Dim3 grid, Dim3 block, int64_t shared_bytes, const Params& params,
                       int64_t workspace_bytes) {
  static_assert(std::is_trivially_copyable_v<Params>, "kernel parameters are copied byte by byte");
  LaunchPlan plan{entry, grid, block, shared_bytes, std::vector<unsigned char>(sizeof(Params)), workspace_bytes};
  std::memcpy(plan.params.data(), &params, sizeof(Params));
  return plan;
}

constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace dflash
