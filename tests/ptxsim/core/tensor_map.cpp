#include "tensor_map.h"

#include <algorithm>
#include <iterator>

namespace ptxsim {
namespace {

// In the order of tensor_map.py.
constexpr Type kTypes[] = {Type::kU8,  Type::kU16, Type::kU32, Type::kS32, Type::kU64,
                           Type::kS64, Type::kF16, Type::kF32, Type::kF64, Type::kBF16};

}  // namespace

Type TensorMap::element() const { return kTypes[type]; }

std::string TensorMap::fault(int dimensions) const {
  if (magic != kMagic || type >= std::size(kTypes) || rank < 1 || rank > kMostDimensions || swizzle > 3) {
    return "the address is not that of a tensor map";
  }
  if (rank != dimensions) {
    return "the tensor map has " + std::to_string(rank) + " dimensions, the instruction " + std::to_string(dimensions);
  }
  return "";
}

uint32_t TensorMap::box_bytes() const {
  auto bytes = static_cast<uint32_t>(size_of(element()));
  for (int d = 0; d < rank; ++d) bytes *= (box[d] + element_strides[d] - 1u) / element_strides[d];
  return bytes;
}

std::vector<CopyRun> runs_of(const TensorMap& map, const int32_t* coordinates, uint64_t shared) {
  const auto element = static_cast<uint64_t>(size_of(map.element()));
  uint64_t count[kMostDimensions] = {1, 1, 1, 1, 1};
  for (int d = 0; d < map.rank; ++d) {
    count[d] = (map.box[d] + map.element_strides[d] - 1u) / map.element_strides[d];
  }
  const uint64_t piece = map.swizzle != 0 ? 16 : count[0] * element;
  std::vector<CopyRun> runs;
  uint64_t linear = 0;
  uint64_t at[kMostDimensions] = {};
  const uint64_t rows = count[1] * count[2] * count[3] * count[4];
  for (uint64_t row = 0; row < rows; ++row) {
    bool outside_row = false;
    uint64_t global = map.address;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t index = coordinates[d] + static_cast<int64_t>(at[d] * map.element_strides[d]);
      outside_row = outside_row || static_cast<uint64_t>(index) >= map.sizes[d];  // a negative index wraps around
      global += static_cast<uint64_t>(index) * map.strides[d - 1];
    }
    for (uint64_t i = 0; i < count[0]; ++i, linear += element) {
      const int64_t index = coordinates[0] + static_cast<int64_t>(i * map.element_strides[0]);
      CopyRun next{swizzled(shared + linear, map.swizzle), global + static_cast<uint64_t>(index) * element,
                   static_cast<uint32_t>(element), outside_row || static_cast<uint64_t>(index) >= map.sizes[0]};
      // Elements that follow each other on both sides are one run, within a piece the swizzle moves as a whole.
      CopyRun* last = runs.empty() || i * element % piece == 0 ? nullptr : &runs.back();
      if (last != nullptr && last->outside == next.outside && last->shared + last->bytes == next.shared &&
          (next.outside || last->global + last->bytes == next.global)) {
        last->bytes += next.bytes;
      } else {
        runs.push_back(next);
      }
    }
    for (int d = 1; d < map.rank && ++at[d] == count[d]; ++d) at[d] = 0;
  }
  return runs;
}

}  // namespace ptxsim
