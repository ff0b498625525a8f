// Tensor maps of cp.async.bulk.tensor: tests make them with tests/ptxsim/tensor_map.py, since the driver's 128 bytes
// are opaque. Tiled mode only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir.h"

namespace ptxsim {

constexpr int kMostDimensions = 5;

// The 128 bytes as tensor_map.py packs them (little endian). Dimension 0 is the innermost, contiguous one.
struct TensorMap {
  static constexpr uint32_t kMagic = 0x50414d54;  // "TMAP"
  static constexpr uint64_t kBytes = 128;

  uint32_t magic;
  uint8_t type;         // index of kTypes in tensor_map.cpp
  uint8_t rank;         // 1 to 5
  uint8_t swizzle;      // 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
  uint8_t fill_nan;     // what lies outside of the tensor reads as: 0 zero, 1 NaN
  uint64_t address;     // of element 0 in global memory
  uint64_t sizes[5];    // elements
  uint64_t strides[4];  // bytes between elements of dimension 1, 2, ...
  uint16_t box[5];      // elements a copy moves in each dimension, before element strides
  uint8_t element_strides[5];

  // Empty when the map can be used for a tensor of `dimensions`, else what is wrong with it.
  std::string fault(int dimensions) const;
  Type element() const;
  uint32_t box_bytes() const;
};
static_assert(offsetof(TensorMap, element_strides) == 98);

// A contiguous piece of a copy: bytes at `shared` and, unless it lies outside of the tensor, at `global`.
struct CopyRun {
  uint64_t shared = 0;
  uint64_t global = 0;
  uint32_t bytes = 0;
  bool outside = false;
};

// Address bits 4-6 are XORed with bits 7-9: of 128-byte rows all three, of 64-byte rows two, of 32-byte rows one.
inline uint64_t swizzled(uint64_t address, int mode) {
  const uint64_t mask = (uint64_t{1} << mode) - 1;
  return address ^ ((address >> 7 & mask) << 4);
}

// The pieces of the box at `coordinates` that lies at `shared` in shared memory.
std::vector<CopyRun> runs_of(const TensorMap& map, const int32_t* coordinates, uint64_t shared);

}  // namespace ptxsim
